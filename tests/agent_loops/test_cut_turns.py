"""A turn that reaches its limit of tokens, in every tool-call format: its calls are not run, also complete ones."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from loop_builders import CHAT, TASK, TOKENIZER, ListEngine, add, config, exact
from parser_contract import Format
from response_specs import HERMES, KIND
from test_parser_contract import FORMATS

from agentrl.engines.base import SamplingParams
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome, Stop

CALL = ("add", {"a": 2, "b": 3})
formats = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def roll(form: Format, text: str, **limits):
    settings = config(format=form.name, **limits)
    toolbox = Toolbox((add,), settings.rollout.multi_turn)
    with patch.object(CHAT.tokenizer, KIND, HERMES, create=True):  # what the format `tokenizer` reads
        runner = RolloutRunner(ListEngine(text, "5"), CHAT, toolbox, exact, settings)
        return asyncio.run(runner.run(TASK, SamplingParams(), seed=0))


@formats
def test_calls_of_a_cut_turn_are_not_run(form: Format) -> None:
    thoughts, call = form.write_thoughts("Two and three."), form.write("", [CALL])
    for text in (thoughts[:-12], thoughts + call[: len(call) // 2], thoughts + call):
        num_tokens = len(TOKENIZER(text, add_special_tokens=False)["input_ids"])
        rollout = roll(form, text + " " * 90, max_turn_tokens=num_tokens)
        assert (rollout.stop, rollout.tool_calls) == (Stop.MAX_TURN_TOKENS, [])
        last = rollout.trajectories[0].messages[-1]
        assert last["reasoning_content"].startswith("Two and")
        assert "tool_calls" not in last


@pytest.mark.slow
@formats
def test_calls_of_a_complete_turn_are_run(form: Format) -> None:
    call = form.write("", [CALL])
    made = roll(form, form.write_thoughts("Two and three.") + call).tool_calls
    assert [(each.name, each.result, each.outcome) for each in made] == [("add", "5", Outcome.OK)]
    cut = roll(form, call[: len(call) // 2]).tool_calls
    assert {each.outcome for each in cut} <= {Outcome.FORMAT_ERROR}
