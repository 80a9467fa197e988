"""Every advantage estimator against its paper, and properties that all estimators share."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from advantage_references import (
    ESTIMATORS,
    NUM_TOKENS,
    Row,
    estimated,
    groups_of,
    random_rows,
    rollouts_of,
    token_returns,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algos import estimate_advantages
from agentrl.algos.advantages.registry import ADVANTAGE_ESTIMATORS

AGAINST_SIBLINGS = sorted(
    set(ESTIMATORS) - {each for each in ESTIMATORS if each.split()[0] in ("gae", "remax", "reinforce_plus_plus")}
)
SCALE_FREE = [
    "grpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "grpo_turn",
    "grpo_process of turns",
    "gigpo",
]
SHIFT_FREE = ["grpo", "dr_grpo", "grpo_passk", "rloo", "opo", "reinforce_plus_plus_baseline", "gpg", "mt_grpo"]
BATCHES = 25


def ours(named: str, rows: list[Row]) -> list[list[float]]:
    name, reads, options, _ = ESTIMATORS[named]
    return estimated(name, rows, reads, **options)[0]


def close(found: list[list[float]], expected: list[list[float]]) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_every_entry_has_a_reference():
    assert set(ADVANTAGE_ESTIMATORS.names()) == {name for name, *_ in ESTIMATORS.values()} - {
        "grpo_vectorized",
        "rloo_vectorized",
    }


@pytest.mark.parametrize("named", ESTIMATORS)
def test_equals_the_formula_of_the_paper(named: str):
    name, reads, options, reference = ESTIMATORS[named]
    nonzero = 0
    for seed in range(BATCHES):
        rows = random_rows(seed)
        credit = reference(rows)
        expected = [[credit.get((row, column), 0.0) for column in range(NUM_TOKENS)] for row in range(len(rows))]
        found = estimated(name, rows, reads, **options)[0]
        both = (torch.tensor(each, dtype=torch.float64) for each in (found, expected))
        torch.testing.assert_close(*both, rtol=1e-9, atol=1e-9, msg=f"seed {seed}")
        nonzero += any(value for row in found for value in row)
    assert nonzero > BATCHES / 2


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_returns_of_a_critic_are_unwhitened_and_those_of_rewards_are_sums(seed: int, gamma: float, lam: float):
    rows = random_rows(seed)
    reads = ("values", "turn_rewards")
    whitened, returns = estimated("gae", rows, reads, gamma=gamma, lam=lam)
    raw, same_returns = estimated("gae", rows, reads, gamma=gamma, lam=lam, whiten=False)
    assert returns == same_returns
    for row, advantages, targets in zip(rows, raw, returns, strict=True):
        for trained, value, advantage, target in zip(row.mask, row.values, advantages, targets, strict=True):
            assert target == pytest.approx(advantage + value if trained and row.valid else 0)
    there = torch.tensor([row.mask for row in rows]) & torch.tensor([[row.valid] for row in rows])
    chosen = torch.tensor(whitened)[there]
    if len(chosen) > 1 and chosen.any():
        assert float(chosen.mean()) == pytest.approx(0, abs=1e-5)
        assert float(chosen.var()) == pytest.approx(1, abs=1e-3)
    credit = token_returns(rows, gamma)
    for number, row in enumerate(estimated("reinforce_plus_plus", rows, ("turn_rewards",), gamma=gamma)[1]):
        assert row == pytest.approx([credit.get((number, column), 0.0) for column in range(NUM_TOKENS)])


@pytest.mark.parametrize("named", ESTIMATORS)
def test_the_order_of_rollouts_changes_nothing(named: str):
    rows = random_rows(1)
    names = sorted({(row.uid, row.rollout) for row in rows})
    random.Random(0).shuffle(names)
    order = sorted(range(len(rows)), key=lambda index: names.index((rows[index].uid, rows[index].rollout)))
    assert order != list(range(len(rows)))
    before, after = ours(named, rows), ours(named, [rows[index] for index in order])
    close(after, [before[index] for index in order])


@pytest.mark.parametrize("named", ESTIMATORS)
def test_padding_and_tokens_between_turns_change_nothing(named: str):
    rows = random_rows(2)
    padded = [
        replace(
            row,
            mask=[*row.mask, False, False],
            rewards=[*row.rewards, 0.0, 0.0],
            turn_rewards=[*row.turn_rewards, 0.0, 0.0],
            step_ends=[*row.step_ends, False, False],
            values=[value if trained else 77.0 for value, trained in zip(row.values, row.mask, strict=True)]
            + [9.0] * 2,
        )
        for row in rows
    ]
    assert [row[:NUM_TOKENS] for row in ours(named, padded)] == ours(named, rows)
    assert not any(value for row in ours(named, padded) for value in row[NUM_TOKENS:])


@pytest.mark.parametrize("named", ESTIMATORS)
@pytest.mark.parametrize("seed", range(6))
def test_failed_members_get_0_and_do_not_affect_others(named: str, seed: int):
    rows = [replace(row, valid=True) for row in random_rows(seed)]
    failed = {(row.uid, row.rollout) for row in rows if row.rollout == "1"}
    marked = [replace(row, valid=(row.uid, row.rollout) not in failed) for row in rows]
    left = [row for row in marked if row.valid]
    found = ours(named, marked)
    assert not any(value for row, values in zip(marked, found, strict=True) if not row.valid for value in values)
    assert [values for row, values in zip(marked, found, strict=True) if row.valid] == ours(named, left)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("named", AGAINST_SIBLINGS)
def test_groups_of_one_and_of_equal_rewards_have_exactly_0(named: str):
    for seed in range(BATCHES):
        rows = [replace(row, turn_rewards=[0.0] * NUM_TOKENS) for row in random_rows(seed)]
        found = ours(named, rows)
        rollouts = rollouts_of(rows)
        alone = {rollout.uid for rollout in rollouts} - {group[0].uid for group in groups_of(rollouts)}
        same = {group[0].uid for group in groups_of(rollouts) if len({str(r.row.components) for r in group}) == 1}
        same |= {group[0].uid for group in groups_of(rollouts) if "gdpo" not in named and _equal_steps(named, group)}
        for row, values in zip(rows, found, strict=True):
            if row.uid in alone | same:
                assert not any(values), (seed, row.uid)


def _equal_steps(named: str, group: list[Any]) -> bool:
    scores = {rollout.score for rollout in group}
    if named in ("grpo_process of steps", "grpo_process of turns", "grpo_turn discounted") or "gigpo" in named:
        return scores == {0.0}  # otherwise earlier steps earn less, or keep less of the reward
    return len(scores) == 1


@pytest.mark.parametrize("named", SHIFT_FREE)
def test_constant_reward_does_not_change_advantages(named: str):
    rows = [replace(row, turn_rewards=[0.0] * NUM_TOKENS) for row in random_rows(3)]
    close(ours(named, [_outcome(row, 1.0, 5.0, rows) for row in rows]), ours(named, rows))


@pytest.mark.parametrize("named", SCALE_FREE)
def test_unit_of_rewards_does_not_change_the_result(named: str):
    rows = random_rows(4)
    scaled = [
        replace(row, rewards=[8 * each for each in row.rewards], turn_rewards=[8 * each for each in row.turn_rewards])
        for row in rows
    ]
    close(ours(named, scaled), ours(named, rows))


@pytest.mark.parametrize("named", ["dr_grpo", "rloo", "opo", "gpg", "remax", "gae raw", "gigpo centred"])
def test_other_estimators_scale_with_the_rewards(named: str):
    rows = random_rows(4)
    doubled = [
        replace(
            row,
            rewards=[2 * each for each in row.rewards],
            turn_rewards=[2 * each for each in row.turn_rewards],
            values=[2 * each for each in row.values],
            baseline=2 * row.baseline,
        )
        for row in rows
    ]
    close(ours(named, doubled), [[2 * each for each in row] for row in ours(named, rows)])


def _outcome(row: Row, factor: float, shift: float, rows: list[Row]) -> Row:
    last = [other for other in rows if (other.uid, other.rollout) == (row.uid, row.rollout)][-1]
    if row is not last:
        return row
    column = max(index for index, trained in enumerate(row.mask) if trained)
    return replace(
        row, rewards=[*row.rewards[:column], factor * row.rewards[column] + shift, *row.rewards[column + 1 :]]
    )


@pytest.mark.parametrize("named", ["gae", "gae raw", "reinforce_plus_plus discounted", "remax"])
def test_tool_spans_and_row_boundaries_do_not_end_a_return(named: str):
    together = Row(
        "a", "0", [True] * 4, [0.0, 0.5, 0.0, 1.0], [0.0] * 4, [False] * 4, [0.1, 0.2, 0.3, 0.4], [], {}, 0.5
    )
    other = replace(together, rollout="1", rewards=[0.0, 0.0, 0.0, 2.0])
    apart = replace(
        together,
        mask=[True, False, True, False, True, True],
        rewards=[0.0, 0.0, 0.5, 0.0, 0.0, 1.0],
        turn_rewards=[0.0] * 6,
        step_ends=[False] * 6,
        values=[0.1, 50.0, 0.2, 50.0, 0.3, 0.4],
    )
    first = replace(together, mask=[True, True, False, False], rewards=[0.0, 0.5, 0.0, 0.0])
    second = replace(
        together, mask=[False, False, True, True], rewards=[0.0, 0.0, 0.0, 1.0], values=[50.0, 50.0, 0.3, 0.4]
    )
    whole = ours(named, [together, other])
    wide = [replace(other, **{key: [*getattr(other, key), fill, fill] for key, fill in _PADDING.items()}), apart]
    assert [value for value, trained in zip(ours(named, wide)[1], apart.mask, strict=True) if trained] == whole[0]
    cut = ours(named, [first, other, second])
    assert cut[0][:2] + cut[2][2:] == pytest.approx(whole[0])
    assert cut[1] == pytest.approx(whole[1])


_PADDING = {"mask": False, "rewards": 0.0, "turn_rewards": 0.0, "step_ends": False, "values": 0.0}


@pytest.mark.parametrize("named", ESTIMATORS)
@pytest.mark.parametrize("num_trained", [0, 1])
def test_tiny_values_cause_no_nan(named: str, num_trained: int):
    mask = [False, bool(num_trained)]
    row = Row(
        "a",
        "0",
        mask,
        [0.0, float(num_trained)],
        [0.0] * 2,
        [False] * 2,
        [0.5] * 2,
        ["s"] * num_trained,
        {"exact": 1.0, "format": 0.0, "score": 0.0},
        0.25,
    )
    assert torch.tensor(ours(named, [row])).isfinite().all()
    assert torch.tensor(ours(named, [row, replace(row, rollout="1", valid=False)])).isfinite().all()


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS.names())
def test_an_empty_batch_is_empty(name: str):
    none = torch.zeros(0, 3)
    both = estimate_advantages(name, none, none.bool(), [], values=none, baselines=none[:, 0], observation_keys=[])
    assert [each.shape for each in both] == [none.shape, none.shape]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS.names())
def test_results_have_the_type_of_the_rewards(name: str, dtype: torch.dtype):
    rewards, mask = torch.tensor([[0, 1], [0, 0.5]], dtype=dtype), torch.tensor([[1, 1], [1, 1]])
    keys = [["s"], ["s"]]
    both = estimate_advantages(
        name, rewards, mask, ["a", "a"], values=rewards.float(), baselines=rewards[:, 0], observation_keys=keys
    )
    assert [each.dtype for each in both] == [dtype, dtype]
    assert both[0].any()
