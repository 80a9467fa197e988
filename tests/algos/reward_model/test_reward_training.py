"""Losses of reward models: their values, their weights in a mini-batch, and agreement with TRL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algos.base import TokenBatch
from agentrl.algos.reward_model.losses import OutcomeLoss, PairRewardLoss, bradley_terry, outcome_loss
from agentrl.algos.reward_model.samples import reading

PEER = Path(__file__).parents[3] / "benchmarks/peers/trl_reward_model.py"


def batch(scores: Tensor, *, signs=None, labels=None, groups=None, denominator: float | None = None) -> TokenBatch:
    """Samples of two tokens, scored at the second token."""
    mask = torch.tensor([[False, True]] * len(scores))
    spread = lambda values: torch.stack([torch.zeros_like(values), values], dim=1)  # noqa: E731  # short
    zeros = torch.zeros(len(scores), 2, dtype=scores.dtype)
    return TokenBatch(
        logprobs=zeros,
        entropy=zeros,
        loss_mask=mask,
        advantages=zeros if signs is None else spread(torch.tensor(signs, dtype=scores.dtype)),
        behaviour_logprobs=None,
        old_logprobs=None,
        ref_logprobs=None,
        weights=torch.ones(len(scores), dtype=scores.dtype),
        denominator=denominator or float(len(scores)),
        scalars=spread(scores),
        returns=None if labels is None else spread(torch.tensor(labels, dtype=scores.dtype)),
        groups=None if groups is None else torch.tensor(groups),
    )


def scores(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_bradley_terry_loss_equals_its_formula():
    loss = bradley_terry(scores(2.0), scores(0.5), center_rewards_coefficient=0.1)
    assert loss.tolist() == pytest.approx([0.2014132779827524 + 0.1 * 2.5**2])  # log(1 + e^-1.5)


def test_outcome_losses_equal_their_formulas():
    assert outcome_loss("bce", scores(0.0), torch.ones(1).double()).tolist() == pytest.approx([0.6931471805599453])
    assert outcome_loss("mse", scores(3.0), torch.ones(1).double()).tolist() == [4.0]


def test_pairs_find_each_other_in_any_order():
    said = scores(0.5, 1.0, 2.0, -1.0)
    loss, metrics = PairRewardLoss()(batch(said, signs=[-1, -1, 1, 1], groups=[3, 7, 3, 7]))
    expected = bradley_terry(said[[2, 3]], said[[0, 1]]).mean()
    assert loss.item() == pytest.approx(expected.item())
    assert metrics["accuracy"].item() == 0.5
    assert metrics["margin"].item() == pytest.approx((1.5 - 2.0) / 2)


def test_shares_of_micro_batches_add_up():
    loss = PairRewardLoss(center_rewards_coefficient=0.2)
    whole, _ = loss(batch(scores(1, 2, 3, 5), signs=[1, -1, 1, -1], groups=[0, 0, 1, 1]))
    parts = [loss(batch(scores(*pair), signs=[1, -1], groups=[0, 0], denominator=4))[0] for pair in ((1, 2), (3, 5))]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item())


def test_unpaired_conversation_is_an_error():
    with pytest.raises(ValueError, match="one chosen and one rejected"):
        PairRewardLoss()(batch(scores(1, 2, 3), signs=[1, -1, 1], groups=[0, 0, 1]))


@pytest.mark.parametrize("name", ["bce", "mse"])
def test_outcomes_are_the_mean_over_what_is_read(name):
    said, labels = scores(0.3, -2.0, 1.0), [1.0, 0.0, 0.25]
    loss, metrics = OutcomeLoss(name)(batch(said, labels=labels))
    expected = outcome_loss(name, said, torch.tensor(labels).double()).mean()
    assert loss.item() == pytest.approx(expected.item())
    assert metrics["label_mean"].item() == pytest.approx(sum(labels) / 3)
    assert metrics.get("accuracy", torch.tensor(2 / 3)).item() == pytest.approx(2 / 3)


def test_gradients_equal_finite_differences():
    pairs = lambda said: PairRewardLoss(0.3)(batch(said, signs=[1, -1], groups=[0, 0]))[0]  # noqa: E731  # short
    outcomes = lambda said: OutcomeLoss("bce")(batch(said, labels=[1.0, 0.25]))[0]  # noqa: E731  # short
    for function in (pairs, outcomes):
        assert torch.autograd.gradcheck(function, (scores(0.3, -0.7),))


@pytest.mark.slow
@pytest.mark.parametrize("center", [0.0, 0.05])
def test_reward_model_loss_equals_trl(center: float, run_peer: Callable[..., Any], tmp_path: Path, monkeypatch) -> None:
    """TRL's RewardTrainer on the same pairs and weights, against our loss under the torch backend."""
    import asyncio

    from agentrl.backends.torch.backend import load_scalar_backend
    from agentrl.config.actor import ActorConfig
    from agentrl.config.model import ModelConfig

    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "backends"))
    from tiny_models import save_model
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(save_model(tmp_path / "lm", "qwen3"), num_labels=1)
    torch.nn.init.normal_(model.score.weight)
    model.config.pad_token_id = 0
    model.save_pretrained(tmp_path / "rm")
    pairs = [([5, 6, 7, 8], [5, 6, 9]), ([3, 4], [3, 4, 4, 11, 12]), ([7, 7, 9], [7, 8, 9])]
    (tmp_path / "question.json").write_text(json.dumps({"pairs": pairs, "center": center}))
    theirs = run_peer("trl", PEER, tmp_path / "rm", tmp_path / "question.json")
    samples = []
    for number, sides in enumerate(pairs):
        for sign, ids in zip((1.0, -1.0), sides, strict=True):
            sample = reading(ids, {len(ids): 0.0}, uid=str(number), rollout_id=f"{number}/{sign}")
            samples.append(_signed(sample, sign))
    backend = load_scalar_backend(
        ModelConfig(path=str(tmp_path / "rm")), ActorConfig(device="cpu"), total_updates=1, seed=0
    )
    stats = asyncio.run(backend.train_step(samples, PairRewardLoss(center)))
    asyncio.run(backend.close())
    assert stats.metrics["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert stats.metrics["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)


def _signed(sample, sign: float):
    from dataclasses import replace

    return replace(sample, advantages=[sign * read for read in sample.loss_mask])
