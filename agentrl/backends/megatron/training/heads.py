"""Heads: read log-probabilities or one number per trained token from the states of the last pipeline stage.

Axes: N trained tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor, nn
from torch.nn.functional import linear

from agentrl.backends.base import Scores
from agentrl.backends.megatron.training.batches import PackedBatch
from agentrl.backends.megatron.training.logprobs import divided_logprobs
from agentrl.backends.torch.logprobs import token_logprobs
from agentrl.models.scalar import scalars_of


class Head(Protocol):
    """See agentrl.backends.torch.heads.

    Attributes:
        outputs: names of the outputs of `read`, in order.
        is_divided: whether each tensor-parallel process has a part of the head. If so, each of them computes only a
            part of the gradient of the states.
    """

    @property
    def outputs(self) -> Sequence[str]: ...  # noqa: D102  # documented above
    @property
    def is_divided(self) -> bool: ...  # noqa: D102

    def read(
        self, states_NH: Tensor, layer: nn.Module, weight: Tensor | None, packed: PackedBatch, *, entropy_gradient: bool
    ) -> Sequence[Tensor]:
        """Compute each output, [N], of the tokens that this process predicts.

        Args:
            layer: the output layer of the chunk, after the last transformer layer.
            weight: with tied embeddings, the shared weight of embedding and head, used instead of `layer.weight`; else
                None.
        """
        ...

    def scores(self, found: dict[str, list[list[float]]]) -> Scores:
        """Convert the outputs of samples, [num samples][T] each, to `Scores`."""
        ...


class LanguageHead:
    """Log-probabilities and entropy.

    Args:
        vocabulary_size: number of logits; the weight of the head may have more rows, which pad the vocabulary.
    """

    outputs = ("logprobs", "entropy")
    is_divided = True

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._columns = parallel_state.get_tensor_model_parallel_group()

    def read(
        self, states_NH: Tensor, layer: nn.Module, weight: Tensor | None, packed: PackedBatch, *, entropy_gradient: bool
    ) -> Sequence[Tensor]:
        """See `Head.read`."""
        batch, owned_N = packed.batch, packed.predicted
        rows: Any = layer.weight if weight is None else weight  # Any: megatron-core is untyped
        temperatures = None if batch.temperatures is None else batch.temperatures[owned_N]
        targets_N = batch.targets[owned_N]
        return self.logprobs(states_NH, rows, targets_N, temperatures, entropy_gradient=entropy_gradient)

    def logprobs(
        self,
        states_NH: Tensor,
        rows: Tensor,
        targets_N: Tensor,
        temperatures_N: Tensor | None = None,
        *,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the targets, and entropy; `rows`: the head's rows on this process."""
        first = self._columns.rank() * len(rows)
        own = max(0, min(len(rows), self._vocabulary_size - first))
        return token_logprobs(
            lambda chosen_NH: linear(chosen_NH, rows[:own]),
            states_NH,
            targets_N,
            temperatures_N,
            len(rows),  # padding included, so that all processes compute the same chunks
            entropy_gradient=entropy_gradient,
            read=partial(divided_logprobs, self._columns, first),
        )

    def scores(self, found: dict[str, list[list[float]]]) -> Scores:
        """See `Head.scores`."""
        return Scores(found["logprobs"], found["entropy"])


def all_states(states: Tensor, *, is_sliced: bool, sums: bool) -> Tensor:
    """Return the states of all positions.

    Args:
        is_sliced: whether each tensor-parallel process has a slice of the positions (sequence parallelism).
        sums: whether the gradient is summed over the tensor-parallel processes, see `Head.is_divided`.
    """
    if is_sliced:
        states = gather_from_sequence_parallel_region(states, tensor_parallel_output_grad=sums)
    elif sums:
        states = copy_to_tensor_model_parallel_region(states)
    return states


class ScalarHead:
    """One number per trained token: a linear function (`ScalarLayer`) of the state that predicts the token."""

    outputs = ("scalars",)
    is_divided = False

    def read(
        self, states_NH: Tensor, layer: nn.Module, weight: Tensor | None, packed: PackedBatch, *, entropy_gradient: bool
    ) -> Sequence[Tensor]:
        """See `Head.read`."""
        inner: Any = layer  # Any: a ScalarLayer
        return [scalars_of(inner.score, states_NH)]

    def scores(self, found: dict[str, list[list[float]]]) -> Scores:
        """See `Head.scores`."""
        return Scores([], [], values=found["scalars"])
