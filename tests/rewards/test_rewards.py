from __future__ import annotations

import asyncio
import math
import threading
import time
from functools import partial

import numpy as np
import pytest

from agentrl.config.reward import CustomRewardConfig, RewardConfig
from agentrl.errors import AgentRLError, ConfigError, DataError, RewardError
from agentrl.rewards.base import close_reward
from agentrl.rewards.builtin.registry import exact_match, gsm8k
from agentrl.rewards.functions.function import FunctionReward
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.tools.base import InfraError
from agentrl.types.task import Task


def score(function, *, timeout_s=5.0, ground_truth="7", **kwargs):
    reward = FunctionReward(function, kwargs, timeout_s, getattr(function, "__name__", "reward"))
    return asyncio.run(reward("math", "the text", ground_truth, {"index": 3, "num_turns": 2}))


@pytest.mark.parametrize(
    ("returned", "numbers"),
    [
        (0.5, {"score": 0.5}),
        (True, {"score": 1.0}),
        (2, {"score": 2.0}),
        (np.float32(0.25), {"score": 0.25}),
        (np.array([1.5]), {"score": 1.5}),
        ({"score": 1, "acc": True, "n": np.int64(4)}, {"score": 1.0, "acc": 1.0, "n": 4.0}),
        ({"score": 1, "pred": "7", "why": None, "bad": math.nan, "list": [1]}, {"score": 1.0}),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_valid_return_values_are_scores(returned, numbers, is_async, caplog):
    def plain(solution_str):
        return returned

    async def waiting(solution_str):
        await asyncio.sleep(0)
        return returned

    assert score(waiting if is_async else plain) == numbers
    dropped = set(returned) - set(numbers) if isinstance(returned, dict) else set()
    assert len(caplog.records) == len(dropped)


@pytest.mark.parametrize("returned", [None, math.nan, math.inf, "1", {}, {"acc": 1.0}, {"score": "1"}, [1, 2], (1, {})])
def test_invalid_return_values_are_errors(returned):
    def bad(solution_str):
        return returned

    with pytest.raises(RewardError, match=r"reward 'bad' \(data source 'math', row 3\)"):
        score(bad)


class Judge:
    async def __call__(self, solution_str):
        await asyncio.sleep(0)
        return float(len(solution_str))


@pytest.mark.parametrize("function", [Judge(), partial(Judge()), lambda solution_str: Judge()(solution_str)])
def test_a_returned_coroutine_is_awaited(function):
    assert score(function) == {"score": 8.0}


def test_coroutine_returned_by_a_plain_function_has_a_deadline():
    with pytest.raises(InfraError, match=r"took longer than 0\.05 seconds"):
        score(lambda solution_str: asyncio.sleep(5), timeout_s=0.05)


def test_a_raising_function_is_named():
    def broken(solution_str):
        raise KeyError("k\nover two lines")

    with pytest.raises(RewardError, match=r"reward 'broken' \(data source 'math', row 3\) raised KeyError: .*lines"):
        score(broken)
    with pytest.raises(RewardError, match="raised RuntimeError: SystemExit"):
        score(lambda solution_str: exit())


def test_hanging_function_is_an_infra_error_and_does_not_block_the_loop():
    ticks = []

    def slow(solution_str):
        time.sleep(0.3)

    async def main():
        reward = FunctionReward(slow, {}, 0.02, "slow")
        call = asyncio.create_task(reward("math", "", None, {}))
        while not call.done():
            ticks.append(await asyncio.sleep(0.001))
        return call.exception()

    error = asyncio.run(main())
    assert isinstance(error, InfraError)
    assert "row unknown) took longer than 0.02 seconds" in str(error)
    assert len(ticks) > 3


def test_threads_end_when_a_reward_is_closed():
    async def main():
        reward = load_reward(RewardConfig(name="auto"))
        before = set(threading.enumerate())
        await reward("gsm8k", "#### 1", "1", {})
        started = set(threading.enumerate()) - before
        close_reward(reward)
        for thread in started:
            thread.join(5)
        return started

    started = asyncio.run(main())
    assert started
    assert not any(thread.is_alive() for thread in started)


def test_reward_without_close_is_accepted():
    async def reward(data_source, solution_str, ground_truth, extra_info):
        return {"score": 0.0}

    close_reward(reward)
    assert asyncio.run(reward("", "", "", {})) == {"score": 0.0}


def test_reward_gets_only_arguments_of_its_signature():
    def old(data_source, solution_str, ground_truth):
        return len(data_source) + len(solution_str) + len(ground_truth)

    def rest(**kwargs):
        assert kwargs == {
            "data_source": "math",
            "solution_str": "the text",
            "ground_truth": "7",
            "extra_info": {"index": 3, "num_turns": 2},
            "weight": 2,
        }
        return kwargs["weight"]

    assert score(old) == {"score": 13.0}
    assert score(rest, weight=2) == {"score": 2.0}


def test_signatures_that_cannot_be_served_are_refused():
    def needs(solution_str, model):
        return 1.0

    with pytest.raises(ConfigError, match=r"needs 'model', but gets only.*reward_kwargs"):
        score(needs)
    with pytest.raises(ConfigError, match=r"does not accept reward_kwargs\.modle: did you mean 'model'"):
        score(needs, modle=1)
    assert score(needs, model=1) == {"score": 1.0}


def test_reward_function_is_loaded_from_a_file(tmp_path):
    path = tmp_path / "my_reward.py"
    path.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0):\n    return bonus"
    )

    def load(**fields):
        return load_reward(RewardConfig(custom_reward_function=CustomRewardConfig(**{"path": path, **fields})))

    assert asyncio.run(load(reward_kwargs={"bonus": 3})("s", "", None, {})) == {"score": 3.0}
    with pytest.raises(ConfigError, match="did you mean 'compute_score'"):
        load(name="compute_scores")
    with pytest.raises(ConfigError, match="there is no file"):
        load(path=tmp_path / "none.py")
    with pytest.raises(ConfigError, match="must be a Python file"):
        load(path=tmp_path / "reward")
    (tmp_path / "broken.py").write_text("def (")
    with pytest.raises(ConfigError, match=r"cannot import .*SyntaxError") as caught:
        load(path=tmp_path / "broken.py")
    assert "\n" not in str(caught.value)


def test_exact_match_reads_the_last_turn():
    assert exact_match("Paris\nno, Lyon", "Paris", {"last_turn": " paris. "}) == 1.0
    assert exact_match("Paris", "Lyon", {}) == 0.0
    assert exact_match("Paris", ["Lyon", "Paris"], {}) == 1.0
    assert exact_match("7", 7, {}) == 1.0


def test_gsm8k_strict_and_flexible():
    assert gsm8k("so #### 1,200", "1200") == 1.0
    assert gsm8k("so #### 1200.0", "work\n#### 1,200") == 1.0
    assert gsm8k("so 1200", "1200") == 0.0
    assert gsm8k("so 1200.", 1200, method="flexible") == 1.0
    assert gsm8k("#### 3", "4", format_score=0.1) == 0.1
    with pytest.raises(ConfigError, match="strict or flexible"):
        gsm8k("", "1", method="loose")


def test_ground_truth_that_is_not_a_number_is_named():
    reward = load_reward(RewardConfig(name="gsm8k"))
    with pytest.raises(RewardError, match=r"row 5\): the ground truth 'abc' is not a number"):
        asyncio.run(reward("gsm8k", "#### 1", "abc", {"index": 5}))


def test_auto_selects_the_reward_by_data_source():
    config = RewardConfig()
    assert asyncio.run(load_reward(config)("openai/gsm8k", "#### 4", "4", {})) == {"score": 1.0}
    check_data_source(config, Task([], data_source="openai/gsm8k"))
    with pytest.raises(
        DataError, match=r"there is no built-in reward for data_source 'gsm9k' .did.*gsm8k.*reward\.name"
    ):
        check_data_source(config, Task([], data_source="gsm9k"))
    with pytest.raises(DataError, match=r"row 9: .*data_source 'mine'"):
        asyncio.run(load_reward(config)("mine", "", None, {"index": 9}))


def test_options_of_built_ins_come_from_reward_kwargs():
    config = RewardConfig(name="gsm8k", custom_reward_function=CustomRewardConfig(reward_kwargs={"method": "flexible"}))
    assert asyncio.run(load_reward(config)("any", "it is 4", "4", {})) == {"score": 1.0}


def test_options_are_passed_to_built_ins_that_accept_them():
    def auto(**kwargs):
        return load_reward(RewardConfig(custom_reward_function=CustomRewardConfig(reward_kwargs=kwargs)))

    reward = auto(format_score=0.1)
    assert asyncio.run(reward("gsm8k", "#### 5", "4", {})) == {"score": 0.1}
    assert asyncio.run(reward("math_dapo", "Answer: 5", "4", {}))["score"] == -1.0
    with pytest.raises(ConfigError, match=r"no built-in reward accepts reward_kwargs\.fromat_score"):
        auto(fromat_score=0.1)
    custom = CustomRewardConfig(reward_kwargs={"methd": 1})
    with pytest.raises(ConfigError, match=r"'math' does not accept reward_kwargs\.methd: "):
        load_reward(RewardConfig(name="math", custom_reward_function=custom))


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(AgentRLError, match="unknown reward 'gsm8': did you mean 'gsm8k'"):
        load_reward(RewardConfig(name="gsm8"))
