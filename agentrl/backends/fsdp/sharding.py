"""Shard a loaded model over ranks with FSDP2 (`fully_shard`), and read and write the local parts of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from agentrl.backends.torch.batches import Outputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class OnePass(nn.Module):
    """Root of a sharded model. Its forward pass runs a function, so body and head of the model are one pass of FSDP."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Outputs]) -> Outputs:
        """Return the outputs that `compute` returns."""
        return {name: value_N.clone() for name, value_N in compute().items()}  # FSDP2 warns about views


def shard(model: PreTrainedModel, mesh: DeviceMesh, *, offload: bool, param_dtype: torch.dtype | None) -> OnePass:
    """Shard all parameters of `model` in place over the ranks of `mesh`: one group a layer, and one for the rest.

    Every rank must hold the same weights. Gradients are summed over the ranks, in float32 or higher precision.

    Args:
        offload: keep parameters, gradients and optimizer state in CPU memory.
        param_dtype: dtype of gathered parameters; None: that of the weights.
    """
    options = {
        "mesh": mesh,
        "reshard_after_forward": True,  # also of the root: a pass without gradients must leave sharded weights
        "mp_policy": MixedPrecisionPolicy(param_dtype=param_dtype, cast_forward_inputs=False),
        "offload_policy": CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy(),
    }
    names = set(model._no_split_modules or ())
    root = OnePass(model)
    modules = [module for module in model.modules() if type(module).__name__ in names]
    for module in [*modules, root]:
        fully_shard(module, **options)  # type: ignore[call-overload]  # the options are typed one by one
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return root


def place(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy complete `weights` over the weights of the same names; of a sharded weight, the part of this rank."""
    with torch.no_grad():
        for name, value in weights.items():
            target = own[name]
            if isinstance(target, DTensor):
                local_part(target).copy_(part_of(value, target))
            else:
                target.copy_(value)


def shard_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return the part of optimizer state that belongs to this rank; a number is not sharded."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    found = torch.zeros_like(parameter, dtype=value.dtype, requires_grad=False)
    place({"": found}, {"": value})
    return found


def local_part(value: Tensor) -> Tensor:
    """Return the part of a weight on this rank; of a weight that is not sharded, all of it."""
    return value.to_local() if isinstance(value, DTensor) else value


def part_of(value: Tensor, like: DTensor) -> Tensor:
    """Return the rows of the complete tensor `value` that belong to this rank."""
    size, rank = like.device_mesh.size(), like.device_mesh.get_local_rank()
    rows = -(-value.shape[0] // size)  # as torch.chunk cuts
    return value[rank * rows : (rank + 1) * rows]


def parts(value: Tensor) -> Iterator[torch.Size]:
    """Yield the shape of the part of each rank."""
    if not isinstance(value, DTensor):
        yield value.shape
        return
    size = value.device_mesh.size()
    rows = -(-value.shape[0] // size)
    for rank in range(size):
        yield torch.Size([max(0, min(rows, value.shape[0] - rank * rows)), *value.shape[1:]])
