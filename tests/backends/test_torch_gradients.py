"""The gradient of a mini-batch is exact for any micro-batch split, even if a loss compares several samples."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import in_float64, make_model, make_samples, save_model

from agentrl.algos.base import Scope, TokenBatch
from agentrl.algos.losses.aggregation import aggregate, token_mean
from agentrl.backends.torch.backend import load_torch_backend
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.gradients import accumulate_gradients, mini_batch, splits_groups_or_rollouts
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.types.sample import Sample

SCOPES: list[Scope] = ["rollout", "group", "batch"]


@dataclass(frozen=True)
class Together:
    """Like GSPO's ratio, but nonlinear: one ratio for all rows of a rollout, of a group, or of the batch."""

    looks_at: Scope
    says: Scope
    """The declared scope, equal to `looks_at` in a correct loss."""
    aggregation: str = "token-mean"
    needs_entropy: bool = False
    norm_length: int | None = None

    @property
    def scope(self) -> Scope:
        return self.says

    def __call__(self, batch: TokenBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        numbers = {"rollout": batch.rollouts, "group": batch.groups}.get(self.looks_at)
        numbers = torch.zeros_like(batch.rollouts) if numbers is None else numbers
        log_ratio = torch.where(batch.loss_mask, batch.logprobs - batch.behaviour_logprobs, 0.0)
        sums, counts = (
            torch.zeros(len(numbers), dtype=each.dtype).index_add(0, numbers, each.sum(-1))
            for each in (log_ratio, batch.loss_mask.to(log_ratio.dtype))
        )
        ratios = (sums / counts.clamp(min=1)).tanh()[numbers, None]
        values = ratios * batch.advantages + (batch.entropy.square() if self.needs_entropy else 0)
        loss = aggregate(
            self.aggregation, values, batch.loss_mask, weights=batch.weights, denominator=batch.denominator
        )
        return loss, {"ratio": token_mean(ratios.expand_as(values), batch.loss_mask)}


def grouped_samples() -> list[Sample]:
    """Seven samples: three groups, and two rollouts of two rows each."""
    return [replace(sample, uid=f"group-{number // 3}") for number, sample in enumerate(make_samples(7))]


@pytest.fixture(scope="module")
def model() -> PositionwiseModel:
    return PositionwiseModel(in_float64(make_model()), share_prefixes=True)


def gradients(
    model: PositionwiseModel, loss: Together, packs: list[list[int]]
) -> tuple[list[torch.Tensor], dict[str, float]]:
    model.model.zero_grad()
    with model.running():
        metrics = accumulate_gradients(model, mini_batch(grouped_samples(), loss), loss, packs)
    return [value.grad.clone() for value in model.model.parameters() if value.grad is not None], metrics


CUTS = {
    "one": [[*range(7)]],
    "two": [[6, 0, 3, 2], [5, 1, 4]],
    "each": [[number] for number in (3, 1, 0, 6, 5, 4, 2)],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("cut", ["two", "each"])
def test_splitting_does_not_change_gradients(model: PositionwiseModel, scope: Scope, cut: str, aggregation: str):
    loss = Together(scope, scope, aggregation)
    expected, said = gradients(model, loss, CUTS["one"])
    found, said_of_parts = gradients(model, loss, CUTS[cut])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert said_of_parts == pytest.approx(said, rel=1e-9)
    careless, _ = gradients(model, replace(loss, says="row"), CUTS[cut])
    assert any(not torch.allclose(one, other, rtol=1e-3) for one, other in zip(careless, expected, strict=True))


def test_entropy_bonus_has_the_right_gradient(model: PositionwiseModel):
    loss = Together("group", "group", needs_entropy=True)
    (expected, _), (found, _) = (gradients(model, loss, CUTS[cut]) for cut in ("one", "each"))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    (without, _) = gradients(model, replace(loss, needs_entropy=False), CUTS["each"])
    assert any(not torch.allclose(one, other, rtol=1e-3) for one, other in zip(without, expected, strict=True))


def num_forwards(model: PositionwiseModel, loss: Together, packs: list[list[int]]) -> int:
    calls: list[object] = []
    handle = model.model.base_model.register_forward_hook(lambda *_: calls.append(None))
    gradients(model, loss, packs)
    handle.remove()
    return len(calls)


def test_second_pass_only_if_groups_or_rollouts_are_split(model: PositionwiseModel):
    whole_groups = [[0, 1, 2], [3, 4, 5], [6]]
    assert num_forwards(model, Together("group", "group"), whole_groups) == 3
    assert num_forwards(model, Together("batch", "batch"), whole_groups) == 6
    assert num_forwards(model, Together("batch", "batch"), CUTS["one"]) == 1
    assert num_forwards(model, Together("rollout", "rollout"), CUTS["each"]) == 14


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(0, 3)), max_size=8))
def test_splits_within_a_rollout_or_group_are_detected(placed: list[tuple[str, int]]):
    samples = [Sample([1, 2], [0, 1], [1, 1], [0, 0], rollout_id=name, uid=name) for name, _ in placed]
    packs = [[index for index, (_, place) in enumerate(placed) if place == number] for number in range(4)]
    packs = [pack for pack in packs if pack]
    parted = any(name and name == other and place != elsewhere for name, place in placed for other, elsewhere in placed)
    assert splits_groups_or_rollouts(samples, packs, "rollout") == parted
    assert splits_groups_or_rollouts(samples, packs, "group") == parted
    assert splits_groups_or_rollouts(samples, packs, "batch") == (len(packs) > 1)
    assert not splits_groups_or_rollouts(samples, packs, "row")


@pytest.mark.slow
@pytest.mark.parametrize("share_prefixes", [True, False])
def test_training_does_not_depend_on_the_micro_batch_size(tmp_path: Path, share_prefixes: bool):
    path = save_model(tmp_path)
    weights, metrics = [], []
    for size in (None, 2, 1):
        changes = {"ppo_micro_batch_size_per_gpu": size, "share_prefixes": share_prefixes, "device": "cpu"}
        config = ActorConfig.model_validate(changes)
        backend = load_torch_backend(ModelConfig(path=str(path)), config, total_updates=1, seed=0)
        metrics.append(asyncio.run(backend.train_step(grouped_samples(), Together("group", "group"))).metrics)
        weights.append(dict(backend.weights()))
    assert [each.pop("num_micro_batches") for each in metrics] == [1, 4, 7]
    for other in (1, 2):
        assert metrics[other] == pytest.approx(metrics[0], rel=1e-4)
        for name, value in weights[other].items():
            torch.testing.assert_close(value, weights[0][name], rtol=1e-4, atol=2e-6)
