from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.reward import RewardConfig
from agentrl.rewards.functions.rate_limits import RateLimitedReward, RateLimiter


class Clock:
    """A fake clock that advances only while tasks sleep; the earliest wake-up runs first."""

    def __init__(self) -> None:
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)

    def pace(self, per_minute: float) -> RateLimiter:
        return RateLimiter(per_minute, lambda: self.now, self.sleep)


def limited(num, **options):
    """Start times of `num` calls that arrive together."""
    clock, began = Clock(), []

    async def reward(data_source, solution_str, ground_truth, extra_info):
        began.append(clock.now)
        await asyncio.sleep(0)
        return {"score": 1.0}

    async def main():
        config = RewardConfig(reward_manager={"name": "rate_limited"}, **options)
        own = RateLimitedReward(reward, config, clock.pace)
        return await asyncio.gather(*(own("math", "", None, {}) for _ in range(num)))

    assert asyncio.run(main()) == [{"score": 1.0}] * num
    return began


def test_request_rate_is_limited_per_minute():
    assert limited(4, max_rpm=30) == [0.0, 2.0, 4.0, 6.0]


def test_token_rate_is_limited_per_minute():
    assert limited(3, max_tpm=6000, estimated_tokens_per_request=1000) == [0.0, 10.0, 20.0]


def test_smaller_limit_applies():
    assert limited(3, max_rpm=60, max_tpm=600, estimated_tokens_per_request=100) == [0.0, 10.0, 20.0]


def test_no_rate_limit_means_no_wait():
    assert limited(5) == [0.0] * 5


def test_time_that_passed_is_not_saved_up():
    async def main():
        clock = Clock()
        pace = clock.pace(60)
        times = []
        for idle in (0.0, 10.0, 0.0, 0.0):
            clock.now += idle
            await pace.wait()
            times.append(clock.now)
        return times

    assert asyncio.run(main()) == [0.0, 10.0, 11.0, 12.0]


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), min_size=1, max_size=20), st.floats(1, 600))
def test_never_more_in_a_minute_than_allowed(arrivals, per_minute):
    async def main():
        clock = Clock()
        pace = clock.pace(per_minute)
        passed = []
        for idle, units in arrivals:
            clock.now += idle
            await pace.wait(units)
            passed.append((clock.now, units))
        return passed

    passed = asyncio.run(main())
    for first, (start, _) in enumerate(passed):
        within = [units for when, units in passed[first:-1] if when < start + 60 - 1e-6]
        # the last call within the minute may spend its units after the minute
        assert sum(within[:-1]) <= per_minute + 1e-6


@pytest.mark.parametrize("limit", [1, 3])
def test_number_of_parallel_calls_is_limited(limit):
    running, most = 0, 0

    async def reward(data_source, solution_str, ground_truth, extra_info):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return {"score": 1.0}

    async def main():
        own = RateLimitedReward(reward, RewardConfig(reward_manager={"name": "rate_limited"}, max_concurrent=limit))
        await asyncio.gather(*(own("math", "", None, {}) for _ in range(9)))

    asyncio.run(main())
    assert most == limit
