"""The exact gradient of a mini-batch, computed in micro-batches, for losses of any scope.

Axes: B samples, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from agentrl.algos.base import LossFunction, Scope
from agentrl.algos.losses.aggregation import add_metrics, aggregation_weights
from agentrl.backends.torch.batches import LossOf, MicroBatch, Outputs, micro_batch, token_batch
from agentrl.backends.torch.peers import ALONE, Peers, SampleOutputs
from agentrl.types.sample import Sample

IDLE = Sample([0, 0], [0, 1], [1.0, 1.0], [0.0, 0.0])
"""Input of a pass without samples, which a process runs while its peers have more micro-batches."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """All or some samples of a mini-batch, and the numbers of the complete mini-batch that scale the losses.

    Attributes:
        weights: [B], the weight of each sample's tokens.
        denominator: the divisor of the weighted sum of token losses.
        num_groups, num_tokens: number of groups and of trained tokens in the complete mini-batch.
    """

    samples: Sequence[Sample]
    weights: Sequence[float]
    denominator: float
    num_groups: int
    num_tokens: int

    def part(self, indices: Sequence[int]) -> MiniBatch:
        """Return the part with the samples at `indices`."""
        samples = [self.samples[index] for index in indices]
        return replace(self, samples=samples, weights=[self.weights[index] for index in indices])


def mini_batch(samples: Sequence[Sample], loss: LossFunction) -> MiniBatch:
    """Return the complete mini-batch of `samples`."""
    counts = [sample.num_trained_tokens for sample in samples]
    rollouts = [sample.rollout_id for sample in samples]
    num_groups = len({sample.uid or number for number, sample in enumerate(samples)})
    weights, denominator = aggregation_weights(loss.aggregation, counts, rollouts, loss.norm_length)
    return MiniBatch(samples, weights, denominator, num_groups, sum(counts))


class RunsPasses(Protocol):
    """A model that runs forward and backward passes over micro-batches."""

    @property
    def device(self) -> torch.device:
        """The device on which passes compute."""
        ...

    def run(self, batches: Iterable[MicroBatch], loss_of: LossOf, *, entropy_gradient: bool) -> None:
        """Run a forward pass of each micro-batch, and a backward pass from each loss that `loss_of` returns.

        `loss_of` receives the number and the outputs of each micro-batch, in order. `loss_of` is not called on a
        process that computes no outputs, such as a first pipeline stage.
        """
        ...


def accumulate_gradients(
    model: RunsPasses,
    batch: MiniBatch,
    loss: LossFunction,
    packs: Sequence[Sequence[int]],
    peers: Peers = ALONE,
) -> dict[str, float]:
    """Add the gradient of a mini-batch's loss to the gradients of the weights; return the loss and its metrics.

    Args:
        batch: the samples of this process; for a loss of scope "batch" the complete mini-batch.
        packs: the micro-batches of this process, as indices. The packs of all processes together contain every sample
            with trained tokens exactly once.
        peers: the processes that compute the other samples. All processes run the same number of passes.
    """
    passes = _Passes(model, batch, loss, peers)
    num_passes = peers.most(len(packs))
    split = splits_groups_or_rollouts(batch.samples, packs, loss.scope) or (loss.scope == "batch" and peers.size > 1)
    found = (passes.two if peers.most(split) else passes.one)([*packs, *([()] * (num_passes - len(packs)))])
    # converted only at the end, because each conversion waits for the device
    return {name: float(value) for name, value in found.items()}


@torch.no_grad()
def score_passes(
    model: RunsPasses, samples: Sequence[Sample], packs: Sequence[Sequence[int]], names: Sequence[str]
) -> dict[str, list[list[float]]]:
    """Return each named output of `samples`: a row per sample, a number per token, 0 where the loss mask is 0.

    Args:
        packs: micro-batches of samples with trained tokens. For an empty micro-batch, this process only takes part in
            the passes of its peers.
    """
    found = {name: [[0.0] * len(sample.token_ids) for sample in samples] for name in names}
    batches = [micro_batch([samples[index] for index in indices] or [IDLE], model.device) for indices in packs]

    def keep(number: int, outputs: Outputs) -> None:
        for name in names if packs[number] else ():
            rows = batches[number].spread(outputs[name]).tolist()
            for index, row in zip(packs[number], rows, strict=True):
                found[name][index] = row[: len(samples[index].token_ids)]

    model.run(batches, keep, entropy_gradient=False)
    return found


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
    """Passes over micro-batches. With an empty micro-batch, this process only takes part in the passes of its peers."""

    def __init__(self, model: RunsPasses, batch: MiniBatch, loss: LossFunction, peers: Peers) -> None:
        self._model, self._whole, self._loss, self._peers = model, batch, loss, peers
        self._counts = [sample.num_trained_tokens for sample in batch.samples]

    def one(self, packs: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Compute the loss of each micro-batch separately; the losses add up to the loss of the mini-batch."""
        sums: dict[str, Tensor] = {}

        def loss_of(number: int, outputs: Outputs) -> Tensor:
            if not (indices := packs[number]):
                return zero_loss(outputs)
            batch = self._batch(indices)
            value, metrics = self._loss_of(indices, batch, outputs)
            add_metrics(sums, {"loss": value.detach()}, 1.0)
            add_metrics(sums, metrics, len(batch.rows) / self._whole.num_tokens)
            return value

        self._run(packs, loss_of)
        return sums

    def two(self, packs: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Compute the gradient for a loss that needs samples of several micro-batches together.

        First pass: the loss of all samples and its gradient with respect to the model's outputs. Second pass: the
        gradients of the outputs with respect to the weights (GradCache, Gao et al. 2021, arXiv:2101.06983). Each
        micro-batch needs one more forward pass.
        """
        found = self._without_gradients(packs)
        order = sorted(next(iter(found.values()), {}))
        value, metrics, by_sample = self._gradients_of_outputs(found, order)

        def loss_of(number: int, outputs: Outputs) -> Tensor:
            if not (indices := packs[number]):
                return zero_loss(outputs)
            gradients = {name: torch.cat([own[index] for index in indices]) for name, own in by_sample.items()}
            return torch.stack([(outputs[name] * gradient_N).sum() for name, gradient_N in gradients.items()]).sum()

        self._run(packs, loss_of)
        return {"loss": value, **metrics} if order else {}

    @torch.no_grad()
    def _without_gradients(self, packs: Sequence[Sequence[int]]) -> SampleOutputs:
        """Return the outputs, without gradients, of all samples that the loss needs together."""
        found: SampleOutputs = {}

        def keep(number: int, outputs: Outputs) -> None:
            for name, values_N in outputs.items():
                own = self._by_sample(values_N, packs[number]) if packs[number] else {}
                found.setdefault(name, {}).update(own)

        self._run(packs, keep)
        return self._peers.gathered(found) if self._loss.scope == "batch" else found

    def _gradients_of_outputs(
        self, found: SampleOutputs, order: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor], SampleOutputs]:
        """Return the loss, its metrics, and the gradient of the loss with respect to each sample's outputs."""
        if not order:
            return torch.zeros(()), {}, {}
        leaves = {name: torch.cat([of_sample[index] for index in order]) for name, of_sample in found.items()}
        for name, leaf in leaves.items():
            leaf.requires_grad_(name != "entropy" or self._loss.needs_entropy)
        batch = self._batch(order)
        value, means = self._loss_of(order, batch, leaves)
        torch.autograd.backward(value)
        gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        metrics: dict[str, Tensor] = {}
        add_metrics(metrics, means, len(batch.rows) / self._whole.num_tokens)
        return value.detach(), metrics, {name: self._by_sample(grad_N, order) for name, grad_N in gradients.items()}

    def _by_sample(self, values_N: Tensor, indices: Sequence[int]) -> dict[int, Tensor]:
        return dict(zip(indices, torch.split(values_N, [self._counts[index] for index in indices]), strict=True))

    def _batch(self, indices: Sequence[int]) -> MicroBatch:
        return micro_batch([self._whole.samples[index] for index in indices], self._model.device)

    def _run(self, packs: Sequence[Sequence[int]], loss_of: LossOf) -> None:
        batches = (self._batch(indices) if indices else micro_batch([IDLE], self._model.device) for indices in packs)
        self._model.run(batches, loss_of, entropy_gradient=self._loss.needs_entropy)

    def _loss_of(self, indices: Sequence[int], batch: MicroBatch, outputs: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        weights = [self._whole.weights[index] for index in indices]
        return self._loss(token_batch(batch, outputs, weights, self._whole.denominator, self._whole.num_groups))


def zero_loss(outputs: Outputs) -> Tensor:
    """Return 0, with a gradient of 0 for every weight that the outputs depend on."""
    return torch.stack([value_N.sum() * 0.0 for value_N in outputs.values() if value_N.requires_grad]).sum()
