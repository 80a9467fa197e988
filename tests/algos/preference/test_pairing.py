from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from agentrl.algos.base import TokenBatch
from agentrl.algos.credit import samples_of
from agentrl.algos.preference.pairing import PreferenceLoss, centre, choose
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def trajectory(*token_ids: int) -> Trajectory:
    spans = [VersionSpan(0, len(token_ids))]
    return Trajectory([Segment(Author.PROMPT, [1]), Segment(Author.MODEL, token_ids, [-0.5] * len(token_ids), spans)])


def group(uid: str, *scores: float | None) -> Group:
    """A reward of None: the rollout failed for reasons outside the policy."""
    rollouts = [
        Rollout([trajectory(3, 4)], Stop.FINISHED, {"score": score or 0.0}, infra_failed=score is None)
        for score in scores
    ]
    return Group(Task([], uid=uid), rollouts)


def signs(samples: list[Sample]) -> dict[str, float]:
    return {sample.rollout_id: sample.advantages[-1] for sample in samples}


def chosen(*groups: Group, pairing: str = "best_worst") -> dict[str, float]:
    return signs(choose(groups, samples_of(groups), pairing))


def test_the_best_is_paired_with_the_worst() -> None:
    assert chosen(group("a", 0.5, 1.0, 0.2, None)) == {"a/0": 0, "a/1": 1, "a/2": -1}


def test_equal_scores_and_groups_of_one_make_no_pair() -> None:
    assert set(chosen(group("a", 1.0, 1.0), group("b", 1.0), group("c", None, 2.0)).values()) == {0}


def test_scores_that_differ_by_rounding_are_equal() -> None:
    groups = [group("a", 0.1 + 0.2, 0.3)]
    assert set(chosen(*groups).values()) == {0}
    assert set(signs(centre(groups, samples_of(groups))).values()) == {0}


def test_ties_are_broken_by_the_group_uid() -> None:
    groups = [group(f"g{number}", 1, 1, 0, 0) for number in range(40)]
    drawn = chosen(*groups)
    assert drawn == chosen(*groups[::-1])
    firsts = [drawn[f"g{number}/0"] for number in range(40)]
    assert 0 < sum(firsts) < 40  # the first rollout is not always chosen
    assert sum(value > 0 for value in drawn.values()) == sum(value < 0 for value in drawn.values()) == 40


def test_random_pairing_uses_any_lower_score() -> None:
    groups = [group(f"g{number}", 1.0, 0.5, 0.0) for number in range(40)]
    drawn = chosen(*groups, pairing="best_random")
    assert {drawn[f"g{number}/0"] for number in range(40)} == {1}
    assert {drawn[f"g{number}/1"] for number in range(40)} == {0, -1}


def test_ranking_uses_scores_relative_to_the_mean() -> None:
    groups = [group("a", 1.0, 0.0, None, 0.5), group("b", 0.3, 0.3)]
    values = signs(centre(groups, samples_of(groups)))
    assert values == pytest.approx({"a/0": 0.5, "a/1": -0.5, "a/3": 0, "b/0": 0, "b/1": 0})


def batch(logprobs: list[list[float]], advantages: list[float], **changes: object) -> TokenBatch:
    values = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    mask = torch.ones_like(values, dtype=torch.bool)
    mask[:, 0] = False  # the prompt
    made = TokenBatch(
        logprobs=values,
        entropy=torch.zeros_like(values),
        loss_mask=mask,
        advantages=torch.tensor(advantages, dtype=torch.float64)[:, None] * mask,
        behaviour_logprobs=None,
        old_logprobs=None,
        ref_logprobs=None,
        weights=torch.ones(len(advantages)),
        denominator=float(mask.sum()),
        rollouts=torch.arange(len(advantages)),
        groups=torch.zeros(len(advantages), dtype=torch.long),
    )
    return replace(made, **changes)


LOGPROBS = [[9.0, -1.0, -2.0], [9.0, -0.5, -4.0]]


def log_sigmoid(value: float) -> float:
    return -math.log(1 + math.exp(-value))


def test_a_pair_is_compared_by_the_sums_of_its_log_probabilities() -> None:
    given = batch(LOGPROBS, [1, -1])
    loss, metrics = PreferenceLoss("pairwise", 0.5)(given)
    assert loss.item() == pytest.approx(-log_sigmoid(0.5 * (-3 + 4.5)))
    loss.backward()
    slope = 0.5 * (1 - math.exp(log_sigmoid(0.75)))
    assert given.logprobs.grad.tolist() == [pytest.approx([0, -slope, -slope]), pytest.approx([0, slope, slope])]
    assert metrics["accuracy"] == 1
    assert metrics["nll"].item() == pytest.approx(7.5 / 4)


def test_length_normalization_divides_by_length() -> None:
    mask = torch.tensor([[False, True, True], [False, True, False]])
    given = batch(LOGPROBS, [1, -1], loss_mask=mask)
    loss, _ = PreferenceLoss("pairwise", 1.0, length_normalized=True)(given)
    assert loss.item() == pytest.approx(-log_sigmoid(-1.5 + 0.5))


def test_reference_logprobs_are_summed_the_same_way() -> None:
    reference = torch.tensor([[0.0, -2.0, -2.0], [0.0, -1.0, -1.0]], dtype=torch.float64)
    loss, metrics = PreferenceLoss("dpo", 0.1)(batch(LOGPROBS, [1, -1], ref_logprobs=reference))
    assert loss.item() == pytest.approx(-log_sigmoid(0.1 * ((-3 + 4) - (-4.5 + 2))))
    assert metrics["margin"].item() == pytest.approx(0.35)


def test_trajectories_of_one_rollout_are_one_sequence() -> None:
    rows = [*LOGPROBS, [9.0, -0.25, -0.25]]
    rollouts = torch.tensor([4, 7, 4])
    loss, _ = PreferenceLoss("pairwise", 1.0)(batch(rows, [1, -1, 1], rollouts=rollouts))
    assert loss.item() == pytest.approx(-log_sigmoid(-3 - 0.5 + 4.5))


def test_pair_losses_are_averaged_and_incomplete_pairs_skipped() -> None:
    rows = [*LOGPROBS, *LOGPROBS[::-1], LOGPROBS[0]]
    groups = torch.tensor([2, 2, 0, 0, 1])
    loss, _ = PreferenceLoss("pairwise", 1.0)(batch(rows, [1, -1, 1, -1, 1], groups=groups))
    assert loss.item() == pytest.approx(-(log_sigmoid(1.5) + log_sigmoid(-1.5)) / 2)


@pytest.mark.parametrize("name", ["pairwise", "ranking"])
def test_group_without_pairs_has_zero_loss_and_gradient(name: str) -> None:
    given = batch(LOGPROBS, [0, 0])
    loss, metrics = PreferenceLoss(name, 1.0)(given)
    loss.backward()
    assert loss.item() == 0
    assert not given.logprobs.grad.any()
    assert set(metrics) == {"nll", "entropy"}


def test_a_ranking_of_two_is_their_pair() -> None:
    pair, _ = PreferenceLoss("pairwise", 0.7)(batch(LOGPROBS, [1, -1]))
    ranking, _ = PreferenceLoss("ranking", 0.7)(batch(LOGPROBS, [0.5, -0.5]))
    assert ranking.item() == pytest.approx(pair.item())
