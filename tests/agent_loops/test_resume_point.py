"""Rollouts resumed at one of their turns continue exactly as if the loop had produced the earlier turns itself."""

from __future__ import annotations

import asyncio

import pytest
from loop_builders import TASK, ListEngine, call, config, runner

from agentrl.agent_loops.resume import ResumePoint
from agentrl.engines.base import SamplingParams
from agentrl.types.rollout import Stop
from agentrl.types.trajectory import Author

HERMES = [call("add", a=1, b=2) + call("add", a=2, b=2), "<tool_call>{not json</tool_call>", call("add", a=3, b=2), "5"]
REACT = ['Action: add\nAction Input: {"a": 1, "b": 2}\nObservation:', "Action: add\n", "Final Answer: 5"]
LOOPS = {"tool_agent": HERMES, "react_agent": REACT}


def roll(engine, run_config, **options):
    return asyncio.run(runner(engine, run_config).run(TASK, SamplingParams(), seed=0, **options))


def called(rollout):
    return [
        (each.name, each.arguments, each.result, each.outcome, each.turn, each.num_tokens)
        for each in rollout.tool_calls
    ]


@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_the_same_replies_give_the_same_rollout(loop, turn):
    settings = config(loop, max_parallel_calls=2)
    saved = roll(ListEngine(*LOOPS[loop]), settings)
    engine = ListEngine(*LOOPS[loop][turn:])
    again = roll(engine, settings, resume_point=ResumePoint.of(saved, turn))
    (before,), (after,) = saved.trajectories, again.trajectories
    assert after.token_ids == before.token_ids
    assert after.messages == before.messages
    assert [list(segment.token_ids) for segment in after.segments] == [list(s.token_ids) for s in before.segments]
    assert (again.stop, again.rewards, called(again)) == (saved.stop, saved.rewards, called(saved))
    trained = [segment for segment in after.segments if segment.author is Author.MODEL]
    # earlier samples are part of the prompt: they were trained in their own rollout
    assert len(trained) == len(LOOPS[loop]) - turn
    assert sum(after.loss_mask) == sum(map(len, trained))
    assert engine.requests[0].token_ids == before.token_ids[: len(engine.requests[0].token_ids)]


@pytest.mark.parametrize(
    ("limit", "stop"),
    [
        ({"max_assistant_turns": 3}, Stop.MAX_ASSISTANT_TURNS),
        ({"max_tool_calls": 1}, Stop.MAX_TOOL_CALLS),
        ({"max_tool_calls": 2}, Stop.MAX_TOOL_CALLS),
        ({"max_response_length": 160}, Stop.MAX_RESPONSE_TOKENS),
    ],
)
def test_limits_count_turns_before_the_resume_point(limit, stop):
    settings, replies = config(**limit), [call("add", a=1, b=number) for number in range(6)]
    saved = roll(ListEngine(*replies), settings)
    assert saved.stop is stop
    for turn in range(saved.trajectories[0].num_turns):
        again = roll(ListEngine(*replies[turn:]), settings, resume_point=ResumePoint.of(saved, turn))
        assert again.stop is stop
        assert again.trajectories[0].token_ids == saved.trajectories[0].token_ids
        assert called(again) == called(saved)


def test_resume_point_of_a_missing_turn_is_an_error():
    saved = roll(ListEngine("5"), config())
    assert ResumePoint.of(saved, 0) is not None
    assert ResumePoint.of(saved, 1) is None
    saved.trajectories *= 2
    assert ResumePoint.of(saved, 0) is None
