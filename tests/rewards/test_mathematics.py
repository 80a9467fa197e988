from __future__ import annotations

import asyncio

import pytest

from agentrl.config.reward import CustomRewardConfig, RewardConfig
from agentrl.errors import RewardError, UnknownNameError
from agentrl.rewards.base import close_reward
from agentrl.rewards.builtin import mathematics
from agentrl.rewards.builtin.data_sources import SOURCES, reward_of
from agentrl.rewards.loading import load_reward


def score(name, *solutions, truth="5", **kwargs):
    """A built-in reward's result, computed off the main thread, where math-verify's signals do not work."""
    custom = CustomRewardConfig(reward_kwargs=kwargs)
    config = RewardConfig(name=name, num_workers=1, custom_reward_function=custom)

    async def main():
        reward = load_reward(config)
        answers = [await reward("math", solution, truth, {"index": 3}) for solution in solutions]
        close_reward(reward)
        return answers

    async def on_a_thread():
        return await asyncio.to_thread(asyncio.run, main())

    return asyncio.run(on_a_thread())


@pytest.mark.slow
def test_last_boxed_answer_is_used():
    answers = score("math", r"\boxed{4} no, \boxed{5}", r"\boxed{5} no, \boxed{4}", "5", r"\boxed{x=\frac{10}{2}}")
    assert [each["score"] for each in answers] == [1.0, 0.0, 0.0, 1.0]
    right, wrong, none = score("math", r"\boxed{5}", r"\boxed{4}", "5", score=2.0, format_score=0.1)
    assert (right["score"], wrong["score"], none["score"]) == (2.0, 0.1, 0.0)
    assert score("math", r"\boxed{2}", truth=[r"\boxed{1}", "2"]) == [{"score": 1.0}]


def test_math_dapo_scores_the_answer_line():
    right, wrong, none, box, both = score(
        "math_dapo",
        "so\nAnswer: $5$",
        "Answer: 4",
        "it is 5",
        r"it is \boxed{5}",
        "\\boxed{5}\n**Answer:** 4",
    )
    assert right == box == {"score": 1.0, "acc": 1.0}
    assert wrong == none == both == {"score": -1.0, "acc": 0.0}
    assert score("math_dapo", "Answer: 4", wrong=0) == [{"score": 0, "acc": 0.0}]


def test_geo3k_scores_answer_and_format():
    both, box, form = score("geo3k", r"<think>so</think> \boxed{5}", r"\boxed{5}", r"<think>so</think> \boxed{4}")
    assert both == {"score": 1.0, "acc": 1.0, "format": 1.0}
    assert box == {"score": 0.9, "acc": 1.0, "format": 0.0}
    assert form == {"score": 0.1, "acc": 0.0, "format": 1.0}


@pytest.mark.slow
def test_incomparable_answer_is_wrong_with_a_notice(monkeypatch, caplog):
    monkeypatch.setattr(mathematics, "_ALGEBRA_TIMEOUT_S", 2.5)
    bomb = r"\boxed{9^{9^{9^{9}}} + x}"  # a number too large for any memory
    assert [each["score"] for each in score("math", bomb, r"\boxed{x^2}", truth="x*x")] == [0.0, 1.0]
    assert [record.getMessage()[:60] for record in caplog.records if "compared" in record.getMessage()]


def test_a_row_without_a_truth_is_named():
    with pytest.raises(RewardError, match="row 3 of 'math': the ground truth None contains no answer"):
        score("math", r"\boxed{5}", truth=None)


def test_names_and_sources():
    assert {"geometry", "math_reasoning", "trivia", "code_generation"} <= {*SOURCES}
    assert reward_of("aime2024") == reward_of("math_dapo") == "math_dapo"
    assert reward_of("searchR1_bamboogle") == "search_qa"
    assert reward_of("mine") is None
    for alias in ("math_reasoning", "trivia", "geometry"):
        close_reward(load_reward(RewardConfig(name=alias)))
    with pytest.raises(UnknownNameError, match="did you mean 'math_dapo'"):
        load_reward(RewardConfig(name="math_dap"))
