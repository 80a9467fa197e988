"""The example agent loop with a scripted model: selected by name and by path, and its trained tokens."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from agentrl.agent_loops import agent_loops
from agentrl.chat.format import ChatFormat
from agentrl.cli.compose import compose_config
from agentrl.data.tasks import load_tasks
from agentrl.engines.base import SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.registry import load_file
from agentrl.rewards.loading import load_reward
from agentrl.rollouts.row_check import RowCheck
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.toolbox import load_toolbox
from agentrl.types.rollout import Stop

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples/custom_agent_loop/second_chance.py"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'


def attempt(task_folder, replies, loop=f"{FILE}:SecondChance"):
    """(rollout of the first validation task, the tokenizer), where the model replies `replies`."""
    config = compose_config(["+experiment=calculator", f"rollout.agent.default_agent_loop='{loop}'"])
    tokenizer = AutoTokenizer.from_pretrained(task_folder / "model")
    chat = ChatFormat(tokenizer)
    engine = ScriptedEngine(replies, tokenizer=tokenizer, stop_token_id=chat.stop_token_ids[0])
    toolbox = load_toolbox(config.rollout.multi_turn)
    runner = RolloutRunner(engine, chat, toolbox, load_reward(config.reward), config)
    task = load_tasks([str(task_folder / "val.jsonl")], config.data)[0]
    check = RowCheck(chat, toolbox, config, None)
    assert check.prompt_length(task) <= config.data.max_prompt_length
    check.finish()
    return asyncio.run(runner.run(task, SamplingParams(), seed=0)), tokenizer


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiment's paths are relative to ROOT


def test_answer_without_a_tool_call_gets_a_reminder(task_folder):
    rollout, tokenizer = attempt(task_folder, ["I do not know", CALL, "The answer is 42"])
    assert rollout.stop is Stop.FINISHED
    assert [call.result for call in rollout.tool_calls] == ["42"]
    first, second = rollout.trajectories
    trained = [token for token, trains in zip(second.token_ids, second.loss_mask, strict=True) if trains]
    assert tokenizer.decode(trained) == f"{CALL}<|im_end|>The answer is 42<|im_end|>"
    assert (first.num_turns, second.num_turns) == (1, 2)
    assert "I do not know<|im_end|>\n<|im_start|>user\nUse a tool first." in tokenizer.decode(second.token_ids)


def test_answer_with_a_tool_call_gets_no_reminder(task_folder):
    rollout, _ = attempt(task_folder, [CALL, "The answer is 42"])
    assert (rollout.stop, len(rollout.trajectories)) == (Stop.FINISHED, 1)


def test_reminders_end_with_the_turns_allowed(task_folder):
    rollout, _ = attempt(task_folder, ["I do not know"])
    assert rollout.stop is Stop.MAX_ASSISTANT_TURNS
    assert sum(trajectory.num_turns for trajectory in rollout.trajectories) == 3


def test_agent_loop_is_registered_under_its_name(task_folder, monkeypatch):
    for name in [name for name in sys.modules if FILE.stem in name]:  # other tests may have emptied the registry
        monkeypatch.delitem(sys.modules, name)
    example = load_file(FILE)
    assert agent_loops.get("second_chance") is example.SecondChance
    rollout, _ = attempt(task_folder, [CALL, "The answer is 42"], loop="second_chance")
    assert len(rollout.tool_calls) == 1
