"""Thoughts of model turns in messages, rewards and later trajectories."""

from __future__ import annotations

import asyncio

import pytest
from chat_families import tokenizer_for
from loop_builders import CHAT, TASK, TOKENIZER, ListEngine, add, call, config
from test_history import OPENED, reading

from agentrl.agent_loops import AgentLoop
from agentrl.chat.format import ChatFormat
from agentrl.engines.base import SamplingParams
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome, Rollout, Stop

BEGUN = ChatFormat(tokenizer_for(OPENED))
CALL = call("add", a=2, b=3)


def roll(chat: ChatFormat, *replies: str, tools: tuple = (add,), loop: str = "tool_agent", **multi_turn) -> Rollout:
    settings = config(loop, **multi_turn)
    toolbox = Toolbox(tools, settings.rollout.multi_turn)
    engine = ListEngine(*replies)
    made = RolloutRunner(engine, chat, toolbox, seen, settings)
    return asyncio.run(made.run(TASK, SamplingParams(), seed=0))


SEEN: dict = {}


async def seen(data_source, solution_str, ground_truth, extra_info):
    """A reward that keeps what it was given."""
    SEEN.update(extra_info)
    return {"score": 0.0}


def turns(rollout: Rollout) -> list[dict]:
    return [message for message in rollout.trajectories[0].messages if message["role"] == "assistant"]


@pytest.mark.parametrize("begin", ["", "<think>\n"], ids=["begun by the prompt", "by the model"])
def test_thoughts_content_and_calls_are_told_apart(begin: str) -> None:
    chat = CHAT if begin else BEGUN
    rollout = roll(chat, f"{begin}Two?\n</think>\n\nI add.\n{CALL}", f"{begin}Done: {CALL}\n</think>\n\n5")
    first, last = turns(rollout)
    assert (first["reasoning_content"], first["content"], len(first["tool_calls"])) == ("Two?", "I add.", 1)
    assert last == {"role": "assistant", "reasoning_content": f"Done: {CALL}", "content": "5"}
    assert [(made.name, made.outcome) for made in rollout.tool_calls] == [("add", Outcome.OK)]
    assert SEEN["turn_thoughts"] == ["Two?", f"Done: {CALL}"]
    assert SEEN["turn_contents"] == ["I add.", "5"]
    assert SEEN["conversation"][-1]["content"] == f"<think>\nDone: {CALL}\n</think>\n\n5"
    assert SEEN["last_turn"] == f"{begin}Done: {CALL}\n</think>\n\n5"  # as the model wrote it


@pytest.mark.parametrize("end", ["", "\n</think>\n\n<tool_call>\n"])
def test_cut_thoughts_and_calls_are_never_run(end: str) -> None:
    """The turn reaches its limit inside its thoughts, or inside a call; also if the model ends the turn there."""
    text = f"So {CALL}{end}"
    cut = roll(BEGUN, text + " " * 50, max_turn_tokens=len(TOKENIZER(text)["input_ids"]))
    assert (cut.stop, cut.tool_calls) == (Stop.MAX_TURN_TOKENS, [])
    (turn,) = turns(cut)
    assert turn["reasoning_content"] == f"So {CALL}"
    assert "tool_calls" not in turn
    ended = roll(BEGUN, text, "5")
    assert [made.outcome for made in ended.tool_calls] == ([Outcome.FORMAT_ERROR] if end else [])


def test_without_tools_thoughts_are_told_apart_too() -> None:
    (turn,) = turns(roll(BEGUN, "Hm\n</think>\n\n5", tools=(), loop="single_turn_agent"))
    assert turn == {"role": "assistant", "reasoning_content": "Hm", "content": "5"}


class Again(AgentLoop):
    """Continues in a new trajectory with all messages."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        chat = chat.restart([*chat.trajectory.messages, {"role": "user", "content": "And?"}])
        await chat.model_turn()
        return chat.rollout()


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", None])
def test_a_new_trajectory_shows_thoughts_as_the_template_reads_them(name: str | None) -> None:
    chat = ChatFormat(tokenizer_for(reading(name))) if name else CHAT
    rollout = roll(chat, "<think>\nTwo?\n</think>\n\n5", "6", loop=f"{__name__}:Again")
    prompt = TOKENIZER.decode(rollout.trajectories[1].segments[0].token_ids)
    shown = "<think>Two?</think>5" if name else "<think>\nTwo?\n</think>\n\n5"
    assert f"<|im_start|>assistant\n{shown}<|im_end|>" in prompt
