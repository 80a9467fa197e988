from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algos import estimate_advantages
from agentrl.errors import ConfigError, UnknownNameError


def rewards_of(scores: list[float], num_tokens: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row trains tokens 1 and 3, and has its score on token 3."""
    mask = torch.tensor([[False, True, False, True]] * len(scores))
    rewards = torch.zeros(len(scores), num_tokens)
    rewards[:, 3] = torch.tensor(scores)
    return rewards, mask


def grpo(scores: list[float], uids: list[str], **options: object) -> list[float]:
    advantages, returns = estimate_advantages("grpo", *rewards_of(scores), uids, **options)
    assert torch.equal(advantages, returns)
    assert torch.equal(advantages[:, [0, 2]], torch.zeros(len(scores), 2))  # tokens off the mask
    assert torch.equal(advantages[:, 1], advantages[:, 3])
    return advantages[:, 3].tolist()


def test_grpo_equals_the_worked_example():
    half = 0.5 / (statistics.stdev([1, 0, 0, 1]) + 1e-6)
    assert grpo([1, 0, 0, 1], ["a"] * 4) == pytest.approx([half, -half, -half, half])
    assert half == pytest.approx(0.8660, abs=1e-4)


def test_without_std_the_rewards_are_only_centred():
    assert grpo([1, 0, 0, 1], ["a"] * 4, norm_adv_by_std=False) == pytest.approx([0.5, -0.5, -0.5, 0.5])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-100, 100, width=32)), min_size=1, max_size=12))
def test_equals_the_formula_per_group(rows: list[tuple[str, float]]):
    uids, scores = [uid for uid, _ in rows], [score for _, score in rows]
    for uid, score, advantage in zip(uids, scores, grpo(scores, uids), strict=True):
        group = [other for name, other in zip(uids, scores, strict=True) if name == uid]
        spread = max(group) - min(group)
        if len(group) == 1 or spread == 0:
            assert advantage == 0
        elif spread > 1e-4 * max(map(abs, group)):
            expected = (score - statistics.fmean(group)) / (statistics.stdev(group) + 1e-6)
            assert advantage == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("scores", [[0.7], [0.1] * 3, [1e8] * 7, [-0.3] * 5])
def test_a_group_of_one_or_of_equal_rewards_has_advantage_exactly_0(scores: list[float]):
    assert grpo(scores, ["a"] * len(scores)) == [0.0] * len(scores)


def test_rewards_that_differ_by_rounding_are_equal():
    assert 0.1 + 0.2 != 0.3
    rewards = torch.tensor([[0.0, 0.1, 0.0, 0.2], [0.0, 0.0, 0.0, 0.3]], dtype=torch.float64)
    advantages, _ = estimate_advantages("grpo", rewards, rewards_of([0, 0])[1], ["a", "a"])
    assert not advantages.any()


def test_invalid_members_get_0_and_do_not_affect_statistics():
    with_failure = grpo([1, 0, 1000, 0], ["a"] * 4, valid=[True, True, False, True])
    assert with_failure[2] == 0
    assert with_failure[:2] + with_failure[3:] == grpo([1, 0, 0], ["a"] * 3)
    assert grpo([1, 5], ["a", "a"], valid=[True, False]) == [0, 0]  # only one valid rollout in the group
    assert grpo([1, 5], ["a", "a"], valid=[False, False]) == [0, 0]


def test_a_rollout_of_several_rows_is_one_member():
    # rollout x has three rows, its reward on the last; y and z have one each
    several = grpo([0, 0, 1, 0, 0.5], ["a"] * 5, rollout_ids=["x", "x", "x", "y", "z"])
    x, y, z = grpo([1, 0, 0.5], ["a"] * 3)
    assert several == [x, x, x, y, z]


def test_rollout_ids_are_distinguished_by_group():
    assert grpo([1, 0, 1, 0], ["a", "a", "b", "b"], rollout_ids=["0", "1", "0", "1"]) == grpo([1, 0] * 2, list("aabb"))


def test_rows_of_a_group_need_not_be_adjacent():
    a = grpo([1, 0, 0], ["a"] * 3)
    assert grpo([1, 7, 0, 9, 0], ["a", "b", "a", "b", "a"])[::2] == a


def test_unknown_names_and_options_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'grpo'"):
        estimate_advantages("grp", *rewards_of([1.0]), ["a"])
    with pytest.raises(ConfigError, match="'norm_by_std': did you mean 'norm_adv_by_std'"):
        grpo([1.0], ["a"], norm_by_std=False)
