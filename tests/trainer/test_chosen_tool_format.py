"""The tool-call format that a run chooses from the chat template, before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.run import RunConfig
from agentrl.trainer.builders.overview import overview
from agentrl.trainer.choices import FORMAT, choose

TOOL = "from agentrl.tools.function import tool\n\n@tool\ndef look() -> str:\n    '''Look.'''\n    return ''\n"
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tool_file(tmp_path: Path) -> Path:
    file = tmp_path / "look.py"
    file.write_text(TOOL)
    return file


def config(task_folder: Path, *, loop: str | None = None, template: Path | None = None, **multi_turn) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": f"{task_folder}/model", "chat_template": template},
            "data": {"train_files": [f"{task_folder}/train.jsonl"]},
            "rollout": {"multi_turn": multi_turn, "agent": {"default_agent_loop": loop}},
        }
    )


def test_the_chosen_format_is_shown_and_saved(task_folder: Path, tool_file: Path) -> None:
    resolved, choices = choose(config(task_folder, function_tool_path=tool_file))
    (choice,) = [each for each in choices if each.key == FORMAT]
    assert (choice.value, choice.reason) == ("hermes", "reads the calls that the chat template writes")
    assert resolved.rollout.multi_turn.format == "hermes"
    assert "\n  tool calls   hermes\n" in overview(resolved)


def test_react_uses_its_own_format(task_folder: Path, tool_file: Path) -> None:
    resolved, choices = choose(config(task_folder, loop="react_agent", function_tool_path=tool_file))
    assert resolved.rollout.multi_turn.format == "react"
    assert "the format of the agent loop 'react_agent'" in [choice.reason for choice in choices]


def test_nothing_is_chosen_without_need(task_folder: Path, tool_file: Path) -> None:
    """Without tools, with a format, or if the check of the rows will refuse the template."""
    template = tool_file.with_name("plain.jinja")
    template.write_text(PLAIN)
    for given in (
        config(task_folder),
        config(task_folder, function_tool_path=tool_file, format="qwen3_coder"),
        config(task_folder, function_tool_path=tool_file, template=template),
    ):
        resolved, choices = choose(given)
        assert FORMAT not in [choice.key for choice in choices]
        assert resolved.rollout.multi_turn.format == given.rollout.multi_turn.format
    assert "tool calls" not in overview(choose(config(task_folder))[0])
