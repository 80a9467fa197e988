"""A run whose template begins thoughts and writes calls as XML: the format is chosen, saved, audited and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from audited_runs import make_run
from test_audit_runs import audited, broken, unchecked

from agentrl.cli.main import main
from agentrl.store import TrajectoryStore

pytestmark = pytest.mark.slow

TEMPLATE = """
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for key, value in call.function.arguments | items %}
            {{- '<parameter=' + key + '>\\n' }}
            {{- value | tojson if value is mapping else value }}{{- '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""
SCRIPT = """
from collections import Counter
from zlib import crc32
SEEN = Counter()

def call(place):
    parameter = f"<parameter=place>\\n{place}\\n</parameter>\\n"
    return f"<tool_call>\\n<function=look>\\n{parameter}</function>\\n</tool_call>"

REPLIES = [
    lambda n: f"Where?\\n</think>\\n{call(n % 7)}", lambda n: f"So {call(1)}\\n</think>\\nThe answer is {n % 5}",
    lambda n: "word " * 60, lambda n: f"no end {call(2)}", lambda n: f"Hm\\n</think>\\n{call(3)[:-30]}",
]

def reply(context):
    SEEN[context] += 1
    return REPLIES[(crc32(context.encode()) + SEEN[context]) % len(REPLIES)](SEEN[context])
"""


def train(tmp_path: Path, task_folder: Path) -> Path:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    (tmp_path / "xml.py").write_text(SCRIPT)
    keys = [f"model.chat_template={template}", f"rollout.script_path={tmp_path}/xml.py:reply"]
    limits = ["data.max_prompt_length=120", "data.max_response_length=400", "rollout.multi_turn.max_turn_tokens=150"]
    return make_run(tmp_path, task_folder, *keys, *limits, "trainer.total_training_steps=1", "data.val_files=[]")


def test_the_format_is_chosen_saved_audited_and_rescored(
    tmp_path: Path, task_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, task_folder)
    shown = capsys.readouterr().out
    assert "rollout.multi_turn.format=qwen3_coder" in shown
    assert "reads the calls that the chat template writes" in shown
    assert yaml.safe_load((run / "config.yaml").read_text())["rollout"]["multi_turn"]["format"] == "qwen3_coder"
    (groups,) = (TrajectoryStore(run / "trajectories/train").groups(1),)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    turns = [m for r in rollouts for m in r.trajectories[0].messages if m["role"] == "assistant"]
    assert all(turn["reasoning_content"] for turn in turns)
    assert {call.outcome.value for r in rollouts for call in r.tool_calls} >= {"ok", "format_error"}
    assert not any("no end" in turn["reasoning_content"] and turn.get("tool_calls") for turn in turns)
    ledger = audited(run)
    assert broken(ledger) == set()
    assert unchecked(ledger) == set()
    assert main(["replay", str(run), "rescore", f"reward.custom_reward_function.path={tmp_path}/reward.py"]) == 0
