"""The exact gradient of a mini-batch, computed in micro-batches, for losses of any scope.

Axes: B samples, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.algos.base import LossFunction, Scope
from agentrl.algos.losses.aggregation import add_metrics, aggregation_weights
from agentrl.backends.torch.batches import MicroBatch, Outputs, micro_batch, token_batch
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.types.sample import Sample


def accumulate_gradients(
    model: PositionwiseModel, samples: Sequence[Sample], loss: LossFunction, packs: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Accumulate the gradient of a mini-batch's loss in the weights; return the loss and its metrics.

    Args:
        packs: the micro-batches, as indices; together they contain every sample with trained tokens exactly once.
    """
    batch = _MiniBatch(model, samples, loss)
    if splits_what_belongs_together(samples, packs, loss.scope):
        found = batch.in_two_passes(packs)
    else:
        found = batch.in_one_pass(packs)
    return {name: float(value) for name, value in found.items()}  # at the end, to avoid earlier waits for the device


def splits_what_belongs_together(samples: Sequence[Sample], packs: Sequence[Sequence[int]], scope: Scope) -> bool:
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


class _MiniBatch:
    def __init__(self, model: PositionwiseModel, samples: Sequence[Sample], loss: LossFunction) -> None:
        self._model, self._samples, self._loss = model, samples, loss
        self._counts = [sample.num_trained_tokens for sample in samples]
        self._num_groups = len({sample.uid or number for number, sample in enumerate(samples)})
        rollouts = [sample.rollout_id for sample in samples]
        self._weights, self._denominator = aggregation_weights(
            loss.aggregation, self._counts, rollouts, loss.norm_length
        )

    def in_one_pass(self, packs: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Compute the loss of each micro-batch separately; the losses add up."""
        sums: dict[str, Tensor] = {}
        for indices in packs:
            batch = self._batch(indices)
            outputs = self._outputs(batch)
            value, metrics = self._loss_of(indices, batch, outputs)
            torch.autograd.backward(value)
            add_metrics(sums, {"loss": value.detach()}, 1.0)
            add_metrics(sums, metrics, len(batch.rows) / sum(self._counts))
        return sums

    def in_two_passes(self, packs: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Compute the gradient for a loss that needs samples of several micro-batches together.

        First pass: the loss of all samples and its gradient with respect to the model's outputs. Second pass: the
        gradients of the outputs with respect to the weights (GradCache, Gao et al. 2021, arXiv:2101.06983). This needs
        one more forward pass.
        """
        order = sorted(index for indices in packs for index in indices)
        outputs = self._leaves(packs, order)
        value, metrics = self._loss_of(order, self._batch(order), outputs)
        torch.autograd.backward(value)
        gradients = {name: leaf.grad for name, leaf in outputs.items() if leaf.grad is not None}
        by_sample = {name: self._by_sample(grad_N, order) for name, grad_N in gradients.items()}
        for indices in packs:
            again = self._outputs(self._batch(indices))
            torch.autograd.backward(
                [again[name] for name in by_sample],
                [torch.cat([of_sample[index] for index in indices]) for of_sample in by_sample.values()],
            )
        return {"loss": value.detach(), **metrics}

    @torch.no_grad()
    def _leaves(self, packs: Sequence[Sequence[int]], order: Sequence[int]) -> Outputs:
        """Model outputs, [N] each, for all samples in `order`, as leaf tensors that collect gradients."""
        found: dict[str, dict[int, Tensor]] = {}
        for indices in packs:
            for name, values_N in self._outputs(self._batch(indices)).items():
                found.setdefault(name, {}).update(self._by_sample(values_N, indices))
        leaves = {name: torch.cat([of_sample[index] for index in order]) for name, of_sample in found.items()}
        differentiated = [leaf for name, leaf in leaves.items() if name != "entropy" or self._loss.needs_entropy]
        for leaf in differentiated:
            leaf.requires_grad_()
        return leaves

    def _by_sample(self, values_N: Tensor, indices: Sequence[int]) -> dict[int, Tensor]:
        return dict(zip(indices, torch.split(values_N, [self._counts[index] for index in indices]), strict=True))

    def _batch(self, indices: Sequence[int]) -> MicroBatch:
        return micro_batch([self._samples[index] for index in indices], self._model.model.device)

    def _outputs(self, batch: MicroBatch) -> Outputs:
        return self._model.outputs(batch, entropy_gradient=self._loss.needs_entropy)

    def _loss_of(self, indices: Sequence[int], batch: MicroBatch, outputs: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        weights = [self._weights[index] for index in indices]
        return self._loss(token_batch(batch, outputs, weights, self._denominator, self._num_groups))
