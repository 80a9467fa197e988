"""LoRA (arXiv 2106.09685) for linear modules of megatron-core: B A x is added to the output, with A and B as in peft.

A linear module of megatron-core may hold several linear modules of Hugging Face, such as queries, keys and values. Each
Hugging Face module has its own adapter, A and B. Tensor parallelism divides an adapter like the weight of the module:
in a column-parallel module the rows of B, in a row-parallel module the columns of A.

Axes: S tokens of this process, R rank, N output features of this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn
from torch.nn.functional import linear


@dataclass(frozen=True, slots=True)
class LowRankSize:
    """Size of the adapter of one linear module of Hugging Face, on this process.

    Attributes:
        rank: rows of A and columns of B.
        scale: factor of the output, alpha / rank.
        num_columns: columns of A.
        outputs: indices of the output features to which the adapter's output is added, one for each row of B.
    """

    rank: int
    scale: float
    num_columns: int
    outputs: Tensor


class LowRank(nn.Module):
    """The adapters of a linear module of megatron-core, added by a hook.

    Attributes:
        down: A of each adapter.
        up: B of each adapter.
        is_on: whether the adapters are added. If not, the module computes as in the base model.
    """

    def __init__(self, base: nn.Module, sizes: Sequence[LowRankSize]) -> None:
        super().__init__()
        weight: Tensor = base.weight  # type: ignore[assignment]  # of a linear module
        like = weight.new_empty(0, dtype=torch.promote_types(weight.dtype, torch.float32))
        self.down = nn.ParameterList(like.new_zeros(size.rank, size.num_columns) for size in sizes)
        self.up = nn.ParameterList(like.new_zeros(len(size.outputs), size.rank) for size in sizes)
        self.is_on = True
        self._scales = [size.scale for size in sizes]
        self._is_column, self._is_row = isinstance(base, ColumnParallelLinear), isinstance(base, RowParallelLinear)
        self._divides_positions = any(getattr(each, "sequence_parallel", False) for each in (base, weight))
        self._order = _order([size.outputs for size in sizes], len(weight))
        self._mark()
        base.register_forward_hook(self._added)

    def _mark(self) -> None:
        """Tell megatron-core which weights are divided, and which gradients to sum over slices of the positions."""
        divided, others = (self.up, self.down) if self._is_column else (self.down, self.up)
        for value in [*divided, *others]:
            is_divided = any(value is each for each in divided) and (self._is_column or self._is_row)
            set_tensor_model_parallel_attributes(value, is_divided, 0 if self._is_column else 1, 1)
            if not is_divided:
                value.sequence_parallel = self._divides_positions  # read by megatron-core

    def _added(
        self, _: nn.Module, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        if not self.is_on:
            return outputs
        found, bias = outputs
        return (found + self._delta(inputs[0])).to(found.dtype), bias

    def _delta(self, states: Tensor) -> Tensor:
        """Return the sum that the adapters add to the output, [S, 1, N]."""
        states = states.to(self.down[0].dtype)
        triples = zip(self.down, self.up, self._scales, strict=True)
        parts = [linear(self._joined(linear(states, down)), up) * scale for down, up, scale in triples]
        if self._order is None:
            return parts[0]
        zeros = parts[0].new_zeros(*parts[0].shape[:-1], 1)  # for outputs without an adapter
        return torch.cat([*parts, zeros], dim=-1).index_select(-1, self._order.to(zeros.device))

    def _joined(self, low: Tensor) -> Tensor:
        """Return A x, [S, 1, R], for the positions of the output; `low` is A x as computed on this process.

        The processes exchange A x in the same way as the module's input (column-parallel) or output (row-parallel).
        """
        found: Tensor = low
        if self._is_column and self._divides_positions:
            found = gather_from_sequence_parallel_region(low, tensor_parallel_output_grad=True)
        elif self._is_column:
            found = copy_to_tensor_model_parallel_region(low)
        elif self._is_row and self._divides_positions:
            found = reduce_scatter_to_sequence_parallel_region(low)
        elif self._is_row:
            found = reduce_from_tensor_model_parallel_region(low)
        return found


def _order(outputs: Sequence[Tensor], num_outputs: int) -> Tensor | None:
    """Return where each output feature is in the adapters' concatenated outputs; None if these need no reordering."""
    joined = torch.cat([*outputs])
    order = torch.full((num_outputs,), len(joined))
    order[joined] = torch.arange(len(joined))
    return None if torch.equal(order, torch.arange(num_outputs)) and len(outputs) == 1 else order


@contextmanager
def base_model(chunks: Sequence[nn.Module]) -> Iterator[None]:
    """Use only the base model inside the block."""
    layers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, LowRank)]
    for layer in layers:
        layer.is_on = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_on = True


def keep_recomputable(chunks: Sequence[LanguageModule]) -> None:
    """Set `requires_grad` on the states after frozen embeddings, because pipeline stages and recomputation need it."""
    for chunk in chunks:
        if chunk.pre_process and not chunk.embedding.word_embeddings.weight.requires_grad:
            chunk.embedding.register_forward_hook(_with_gradient)


def _with_gradient(_: nn.Module, __: object, states: Tensor) -> Tensor:
    return states if states.requires_grad or not torch.is_grad_enabled() else states.requires_grad_()
