"""The guard that compares the rollouts of a group: it gets the lengths once the last rollout has ended."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.config.reward_sources import GuardsConfig
from agentrl.rollouts.collector import LengthGuard
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def rollout(num_tokens, **changes):
    answer = Segment(Author.MODEL, [1] * num_tokens, [0.0] * num_tokens, [VersionSpan(0, num_tokens)])
    trajectory = Trajectory([Segment(Author.PROMPT, [1, 2]), answer])
    return Rollout([trajectory], Stop.FINISHED, **{"rewards": {"score": 1.0}} | changes)


def watched(rollouts, config=None, num=None):
    siblings = LengthGuard(num or len(rollouts), config or GuardsConfig())

    def ending(each, after_s):
        async def attempt():
            await asyncio.sleep(after_s)
            return each

        return attempt

    async def all_of_them():
        last_first = [ending(each, 0.001 * (len(rollouts) - place)) for place, each in enumerate(rollouts)]
        return await asyncio.gather(*map(siblings.await_one, last_first))

    assert asyncio.run(all_of_them()) == rollouts
    return [each.rewards.get("guard/length") for each in rollouts]


def test_every_rollout_of_a_group_gets_a_length_verdict():
    assert watched([rollout(length) for length in (100, 110, 500, 90)]) == [0.0, 0.0, 1.0, 0.0]


def test_failed_and_unscored_rollouts_are_excluded():
    failed = rollout(5000, infra_failed=True)
    unscored = rollout(5000, rewards={})
    fine = [rollout(length) for length in (100, 110, 500, 90)]
    assert watched([failed, unscored, *fine]) == [None, None, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(("config", "num"), [(GuardsConfig(names=("repetition",)), 4), (GuardsConfig(), 5)])
def test_no_length_verdict_if_disabled_or_unfinished(config, num):
    assert watched([rollout(length) for length in (100, 110, 500, 90)], config, num) == [None] * 4
