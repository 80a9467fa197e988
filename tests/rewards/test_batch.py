from __future__ import annotations

import asyncio
import math
import threading
import time

import pytest

from agentrl.config.reward import RewardConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.rewards.functions.batch import BatchReward
from agentrl.tools.base import InfraError


def scored(function, num, *, spread_s=0.0, **options):
    """The results of `num` rollouts that end one after another."""

    async def main():
        reward = BatchReward(function, {}, RewardConfig(**{"batch_wait_s": 0.05, **batch_manager(), **options}), "mine")

        async def one(index):
            await asyncio.sleep(index * spread_s)
            return await reward("math", f"text {index}", str(index), {"index": index})

        answers = await asyncio.gather(*map(one, range(num)), return_exceptions=True)
        reward.close()
        return answers

    return asyncio.run(main())


def batch_manager():
    return {"reward_manager": {"name": "batch"}}


def test_a_call_scores_all_waiting_rollouts_and_each_gets_its_result():
    sizes = []

    def function(data_sources, solution_strs, ground_truths, extra_infos):
        sizes.append(len(solution_strs))
        assert data_sources == ["math"] * len(solution_strs)
        assert [info["index"] for info in extra_infos] == list(map(int, ground_truths))
        return [
            {"score": float(truth), "length": len(text)}
            for truth, text in zip(ground_truths, solution_strs, strict=True)
        ]

    answers = scored(function, 7, batch_size=3)
    assert answers == [{"score": float(index), "length": 6.0} for index in range(7)]
    assert sizes == [3, 3, 1]


def test_rollouts_that_end_during_a_call_are_scored_by_the_next():
    sizes = []

    def slow(solution_strs):
        sizes.append(len(solution_strs))
        time.sleep(0.1)
        return [1.0] * len(solution_strs)

    assert scored(slow, 6, spread_s=0.02, batch_wait_s=0.0) == [{"score": 1.0}] * 6
    assert sizes[0] == 1
    assert len(sizes) <= 3


def test_async_function_and_numpy_score_are_accepted():
    numpy = pytest.importorskip("numpy")

    async def function(solution_strs):
        await asyncio.sleep(0)
        return numpy.arange(len(solution_strs))

    assert scored(function, 3) == [{"score": 0.0}, {"score": 1.0}, {"score": 2.0}]


@pytest.mark.parametrize("returned", [[1.0], [1.0, 2.0, 3.0], 1.0, "ab", {"score": 1.0}, None])
def test_wrong_number_of_scores_fails_every_rollout(returned):
    for error in scored(lambda solution_strs: returned, 2):
        assert isinstance(error, RewardError)
        assert "expected a list of 2 scores" in str(error)


def test_invalid_score_names_only_its_row():
    good, bad = scored(lambda solution_strs: [0.5, math.nan], 2)
    assert good == {"score": 0.5}
    assert isinstance(bad, RewardError)
    assert "row 1" in str(bad)


def test_function_that_raises_or_hangs_is_reported():
    def broken(solution_strs):
        raise KeyError("k")

    for index, error in enumerate(scored(broken, 2)):
        assert isinstance(error, RewardError)
        assert f"row {index}) raised KeyError" in str(error)
    released = threading.Event()
    hung, late = scored(lambda solution_strs: released.wait(), 2, spread_s=0.1, timeout_s=0.05, batch_wait_s=0.0)
    released.set()
    assert isinstance(hung, InfraError)
    assert isinstance(late, InfraError)  # the second rollout had its own call, which hung too


def test_cancelled_rollout_is_skipped():
    async def main():
        seen = []

        def function(solution_strs):
            seen.extend(solution_strs)
            return [1.0] * len(solution_strs)

        reward = BatchReward(function, {}, RewardConfig(batch_wait_s=0.05, **batch_manager()), "mine")
        gone, stays = (asyncio.create_task(reward("math", text, None, {})) for text in ("gone", "stays"))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == {"score": 1.0}
        reward.close()
        return seen

    assert asyncio.run(main()) == ["stays"]


def test_a_function_of_one_rollout_is_refused():
    def one(data_source, solution_str, ground_truth, extra_info):
        return 1.0

    with pytest.raises(ConfigError, match="needs 'data_source', but gets only data_sources, solution_strs"):
        BatchReward(one, {}, RewardConfig(), "one")
