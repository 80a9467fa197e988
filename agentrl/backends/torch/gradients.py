"""The exact gradient of a mini-batch, computed in micro-batches, for losses of any scope.

Axes: B samples, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentrl.algos.base import LossFunction, Scope
from agentrl.algos.losses.aggregation import add_metrics, aggregation_weights
from agentrl.backends.torch.batches import MicroBatch, Outputs, micro_batch, token_batch
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.peers import ALONE, Peers, SampleOutputs
from agentrl.types.sample import Sample

IDLE = Sample([0, 0], [0, 1], [1.0, 1.0], [0.0, 0.0])
"""Input of a pass without samples, which a process runs while its peers have more micro-batches."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Samples of a mini-batch, and the numbers of the complete mini-batch by which their losses are scaled.

    Attributes:
        weights: [B], the weight of each sample's tokens.
        denominator: the divisor of the weighted sum.
        num_groups, num_tokens: number of groups and of trained tokens in the complete mini-batch.
    """

    samples: Sequence[Sample]
    weights: Sequence[float]
    denominator: float
    num_groups: int
    num_tokens: int

    def part(self, indices: Sequence[int]) -> MiniBatch:
        """Return the part with the chosen samples."""
        samples = [self.samples[index] for index in indices]
        return replace(self, samples=samples, weights=[self.weights[index] for index in indices])


def mini_batch(samples: Sequence[Sample], loss: LossFunction) -> MiniBatch:
    """Return the complete mini-batch of `samples`."""
    counts = [sample.num_trained_tokens for sample in samples]
    rollouts = [sample.rollout_id for sample in samples]
    num_groups = len({sample.uid or number for number, sample in enumerate(samples)})
    weights, denominator = aggregation_weights(loss.aggregation, counts, rollouts, loss.norm_length)
    return MiniBatch(samples, weights, denominator, num_groups, sum(counts))


def accumulate_gradients(
    model: PositionwiseModel,
    batch: MiniBatch,
    loss: LossFunction,
    packs: Sequence[Sequence[int]],
    peers: Peers = ALONE,
) -> dict[str, float]:
    """Accumulate the gradient of a mini-batch's loss in the weights; return the loss and its metrics.

    Args:
        batch: with peers, the part of this process; for a loss of scope "batch" the complete mini-batch.
        packs: the micro-batches of this process, as indices; with those of its peers they contain every sample with
            trained tokens exactly once.
        peers: the processes that hold the other parts. Each of them runs the same number of passes.
    """
    passes = _Passes(model, batch, loss, peers)
    num_passes = peers.most(len(packs))
    split = splits_groups_or_rollouts(batch.samples, packs, loss.scope) or (loss.scope == "batch" and peers.size > 1)
    found = (passes.two if peers.most(split) else passes.one)([*packs, *([()] * (num_passes - len(packs)))])
    return {name: float(value) for name, value in found.items()}  # at the end, to avoid earlier waits for the device


def splits_groups_or_rollouts(samples: Sequence[Sample], packs: Sequence[Sequence[int]], scope: Scope) -> bool:
    """Whether the micro-batches separate samples that a loss of this scope needs together."""
    if scope in ("row", "batch"):
        return scope == "batch" and len(packs) > 1
    place_of: dict[str, int] = {}
    for place, indices in enumerate(packs):
        for index in indices:
            name = samples[index].rollout_id if scope == "rollout" else samples[index].uid
            if name and place_of.setdefault(name, place) != place:
                return True
    return False


class _Passes:
    """Passes over the micro-batches of a mini-batch; an empty micro-batch only takes part in its peers' passes."""

    def __init__(self, model: PositionwiseModel, batch: MiniBatch, loss: LossFunction, peers: Peers) -> None:
        self._model, self._whole, self._loss, self._peers = model, batch, loss, peers
        self._counts = [sample.num_trained_tokens for sample in batch.samples]

    def one(self, packs: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Compute the loss of each micro-batch separately; the losses add up."""
        sums: dict[str, Tensor] = {}
        for indices, outputs in self._outputs(packs):
            if not indices:
                torch.autograd.backward(zero_loss(outputs))
                continue
            batch = self._batch(indices)
            value, metrics = self._loss_of(indices, batch, outputs)
            torch.autograd.backward(value)
            add_metrics(sums, {"loss": value.detach()}, 1.0)
            add_metrics(sums, metrics, len(batch.rows) / self._whole.num_tokens)
        return sums

    def two(self, packs: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Compute the gradient for a loss that needs samples of several micro-batches together.

        First pass: the loss of all samples and its gradient with respect to the model's outputs. Second pass: the
        gradients of the outputs with respect to the weights (GradCache, Gao et al. 2021, arXiv:2101.06983). This needs
        one more forward pass.
        """
        found = self._without_gradients(packs)
        order = sorted(next(iter(found.values()), {}))
        value, metrics, by_sample = self._gradients_of_outputs(found, order)
        for indices, again in self._outputs(packs):
            if not indices:
                torch.autograd.backward(zero_loss(again))
                continue
            torch.autograd.backward(
                [again[name] for name in by_sample],
                [torch.cat([of_sample[index] for index in indices]) for of_sample in by_sample.values()],
            )
        return {"loss": value, **metrics} if order else {}

    @torch.no_grad()
    def _without_gradients(self, packs: Sequence[Sequence[int]]) -> SampleOutputs:
        """Model outputs of all samples that the loss needs together."""
        found: SampleOutputs = {}
        for indices, outputs in self._outputs(packs):
            for name, values_N in outputs.items():
                found.setdefault(name, {}).update(self._by_sample(values_N, indices) if indices else {})
        return self._peers.gathered(found) if self._loss.scope == "batch" else found

    def _gradients_of_outputs(
        self, found: SampleOutputs, order: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor], SampleOutputs]:
        """Loss, metrics, and the gradient of the loss with respect to each sample's outputs."""
        if not order:
            return torch.zeros(()), {}, {}
        leaves = {name: torch.cat([of_sample[index] for index in order]) for name, of_sample in found.items()}
        for name, leaf in leaves.items():
            leaf.requires_grad_(name != "entropy" or self._loss.needs_entropy)
        value, metrics = self._loss_of(order, self._batch(order), leaves)
        torch.autograd.backward(value)
        gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        return value.detach(), metrics, {name: self._by_sample(grad_N, order) for name, grad_N in gradients.items()}

    def _by_sample(self, values_N: Tensor, indices: Sequence[int]) -> dict[int, Tensor]:
        return dict(zip(indices, torch.split(values_N, [self._counts[index] for index in indices]), strict=True))

    def _batch(self, indices: Sequence[int]) -> MicroBatch:
        return micro_batch([self._whole.samples[index] for index in indices], self._model.device)

    def _outputs(self, packs: Sequence[Sequence[int]]) -> Iterator[tuple[Sequence[int], Outputs]]:
        for indices in packs:
            batch = self._batch(indices) if indices else micro_batch([IDLE], self._model.device)
            yield indices, self._model.outputs(batch, entropy_gradient=self._loss.needs_entropy)

    def _loss_of(self, indices: Sequence[int], batch: MicroBatch, outputs: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        weights = [self._whole.weights[index] for index in indices]
        return self._loss(token_batch(batch, outputs, weights, self._whole.denominator, self._whole.num_groups))


def zero_loss(outputs: Outputs) -> Tensor:
    """Return 0, with a gradient of 0 for every weight that the outputs depend on."""
    return torch.stack([value_N.sum() * 0.0 for value_N in outputs.values() if value_N.requires_grad]).sum()
