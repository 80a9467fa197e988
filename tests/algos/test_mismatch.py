from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from test_build import token_batch
from test_correction import sample

from agentrl.algos.losses.aggregation import add_metrics
from agentrl.algos.losses.policy import PenalisedLoss, PolicyLoss
from agentrl.algos.off_policy.mismatch import WatchedLoss, mismatch_of, moments, split_metrics, summary

LOGS = [0.05, -0.3, 0.0, 0.2]


def by_hand(logs: list[float]) -> dict[str, float]:
    ratios = [math.exp(each) for each in logs]
    mean = sum(ratios) / len(logs)
    return {
        "mismatch/mean": sum(map(abs, logs)) / len(logs),
        "mismatch/max": max(map(abs, logs)),
        "mismatch/k3": sum(r - 1 - each for r, each in zip(ratios, logs, strict=True)) / len(logs),
        "mismatch/share_above": sum(abs(each) > 0.1 for each in logs) / len(logs),
        "mismatch/ratio_mean": mean,
        "mismatch/ess": mean**2 / (sum(r * r for r in ratios) / len(logs)),
    }


def test_mismatch_of_scored_samples_counts_all_tokens():
    step = [sample([None, *LOGS[:3]]), sample([None, None, LOGS[3]])]
    assert mismatch_of(step, 3) == pytest.approx(by_hand(LOGS))
    assert mismatch_of([step[0], replace(step[1], old_logprobs=None)], 3) == {}
    assert mismatch_of([], 3) == {}


def test_tokens_of_older_versions_have_separate_metrics():
    step = [replace(sample([None, *LOGS]), policy_versions=[0, 2, 3, 1, 3])]
    found = mismatch_of(step, 3)
    current, older = by_hand([LOGS[1], LOGS[3]]), by_hand([LOGS[0], LOGS[2]])
    for name in ("mean", "k3", "max"):
        assert found[f"mismatch/current/{name}"] == pytest.approx(current[f"mismatch/{name}"])
        assert found[f"mismatch/older/{name}"] == pytest.approx(older[f"mismatch/{name}"])
    assert found["mismatch/current/share"] == found["mismatch/older/share"] == 0.5
    # no tokens from older versions, so no metrics about them
    assert not any("older" in name for name in mismatch_of(step, 1))


def test_watched_loss_equals_the_loss_and_records_its_inputs():
    loss = PenalisedLoss(PolicyLoss("vanilla", aggregation="seq-mean-token-sum", norm_length=7), entropy_coef=0.1)
    logprobs = torch.tensor([[0.0, -0.95, -2.3]], requires_grad=True)
    batch = token_batch(logprobs=logprobs, policy_versions=torch.tensor([[0, 4, 5]]))
    watched = WatchedLoss(loss, 5)
    assert (watched.aggregation, watched.norm_length, watched.needs_entropy) == ("seq-mean-token-sum", 7, True)
    value, metrics = watched(batch)
    own, mismatch = split_metrics({name: float(each) for name, each in metrics.items()})
    plain, plain_metrics = loss(batch)
    assert torch.equal(value, plain)
    assert own == {name: float(each) for name, each in plain_metrics.items()}
    assert {name: mismatch[name] for name in by_hand(LOGS)} == pytest.approx(by_hand([0.05, -0.3]), rel=1e-5)
    assert mismatch["mismatch/older/mean"] == pytest.approx(0.05, rel=1e-5)
    assert not any(each.requires_grad for name, each in metrics.items() if name.startswith("mismatch/"))


def test_demonstrations_have_nothing_to_compare():
    _, metrics = WatchedLoss(PolicyLoss("sft"), 0)(token_batch(behaviour_logprobs=None))
    assert split_metrics({name: float(each) for name, each in metrics.items()})[1] == {}


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_moments_add_up_for_any_batch_split(cut):
    logs = torch.tensor([[0.3, 0.0], [-0.2, 0.1], [0.02, -1.5], [0.0, 0.0]])
    # the token with -1.5 is not trained
    mask = torch.tensor([[True, False], [True, True], [True, False], [False, True]])
    older = torch.tensor([[True, False], [False, True], [True, True], [False, False]])
    whole = summary({name: float(each) for name, each in moments(logs, mask, older).items()})
    assert whole["mismatch/max"] == pytest.approx(0.3)
    sums: dict[str, torch.Tensor] = {}
    for rows in torch.arange(4).split(cut):
        add_metrics(sums, moments(logs[rows], mask[rows], older[rows]), float(mask[rows].sum() / mask.sum()))
    assert summary({name: float(each) for name, each in sums.items()}) == pytest.approx(whole)


def test_ratios_far_apart_stay_finite():
    found = moments(torch.tensor([[400.0, -400.0]]), torch.tensor([[True, True]]))
    assert all(each.isfinite() for each in found.values())
    assert found["mismatch/max"] == 400
