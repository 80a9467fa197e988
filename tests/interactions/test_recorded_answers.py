"""Recorded answers of a simulated user: used while the conversation is the recorded one, and not asked for again."""

from __future__ import annotations

import asyncio

import pytest
from loop_builders import TASK, TOKENIZER, ListEngine, call, config, runner

from agentrl.engines.base import SamplingParams
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.replayed import RecordedAnswers
from agentrl.types.rollout import Stop


class Counting(BaseInteraction):
    """Asks three times; `answers` counts its answers, and `last` is a text that follows each of them."""

    def __init__(self, last=""):
        super().__init__({"name": "counting"})
        self.answers, self.started, self.last = 0, 0, last

    async def start_interaction(self, instance_id=None, **kwargs):
        self.started += 1
        return await super().start_interaction(instance_id, **kwargs)

    async def generate_response(self, instance_id, messages, **kwargs):
        self.answers += 1
        said = sum(message["role"] == "user" for message in messages)
        return said == 3, f"Again, {said}.{self.last}", said / 4, {"observation_key": f"after {said}"}

    async def calculate_score(self, instance_id, **kwargs):
        return 0.5


def run(replies, user, limits, answers=None):
    async def main():
        runs = runner(ListEngine(*replies), limits, interactions={"counting": user})
        return await runs.run(TASK, SamplingParams(), seed=0, answers=answers)

    return asyncio.run(main())


REPLIES = ["Which?", call("add", a=2, b=3), "5", "six", "7"]


def told(rollout):
    (trajectory,) = rollout.trajectories
    return trajectory.token_ids, rollout.stop, rollout.turn_rewards, rollout.tool_rewards


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "last", "stop"),
    [
        ({}, "", Stop.INTERACTION_ENDED),
        ({"max_assistant_turns": 3}, "", Stop.MAX_ASSISTANT_TURNS),
        ({"max_user_turns": 2}, "", Stop.MAX_USER_TURNS),
        ({"max_response_length": 60}, " Please." * 20, Stop.MAX_RESPONSE_TOKENS),
    ],
)
def test_the_same_conversation_gets_the_recorded_answers(limits, last, stop):
    limits = config(**limits)
    saved = run(REPLIES, Counting(last), limits)
    assert saved.stop is stop
    assert saved.turn_rewards
    user = Counting(last)
    again = run(REPLIES, user, limits, RecordedAnswers(saved, []))
    assert told(again) == told(saved)
    assert (user.answers, user.started) == (0, 0)


@pytest.mark.parametrize("thoughts", ["<think>\nHm\n</think>\n\n", "Hm</think>"])
def test_older_runs_have_thoughts_in_the_content(thoughts):
    replies = [thoughts + reply for reply in REPLIES]
    saved, user = run(replies, Counting(), config()), Counting()
    for message in saved.trajectories[0].messages:
        if message.pop("reasoning_content", None):
            message["content"] = f"{thoughts}{message['content']}"
    assert told(run(replies, user, config(), RecordedAnswers(saved, []))) == told(saved)
    assert user.answers == 0


def test_another_conversation_is_answered_by_the_user_from_there():
    saved = run(REPLIES, Counting(), config())
    user = Counting()
    again = run(["Which?", "four", "six"], user, config(), RecordedAnswers(saved))
    assert (user.answers, user.started) == (2, 1)
    assert [reward.value for reward in again.turn_rewards] == [0.25, 0.5, 0.75]
    assert TOKENIZER.decode(again.trajectories[0].token_ids).count("Again, ") == 2


def test_an_answer_that_was_not_recorded_can_end_the_rollout():
    saved = run(REPLIES, Counting(), config())
    user, unrecorded = Counting(), []
    again = run(["Which?", "four"], user, config(), RecordedAnswers(saved, unrecorded))
    assert again.infra_failed
    assert "not recorded: answer of the simulated user" in str(again.error)
    assert unrecorded == ["answer of the simulated user"]
    assert user.started == 0
