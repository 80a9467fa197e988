"""Load a model in parts, shard it over ranks with FSDP2 (`fully_shard`), and read and write parts of its weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.nn.modules.module import register_module_parameter_registration_hook

from agentrl.backends.torch.batches import LossOf, MicroBatch, Outputs
from agentrl.backends.torch.gradients import RunsPasses
from agentrl.models.weights_in_place import every_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel


LOADED = "_is_hf_initialized"
"""Attribute by which transformers marks a weight that came from a checkpoint."""


class Root(nn.Module):
    """Root of a sharded model. Its forward pass runs a given function, so FSDP sees body and head as one pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Outputs]) -> Outputs:
        """Return the outputs that `compute` returns."""
        return {name: value_N.clone() for name, value_N in compute().items()}  # cloned, because FSDP2 warns about views


def placements(mesh: DeviceMesh) -> list[Placement]:
    """Return how a weight is placed on the ranks: each row of `mesh` has a copy, split along dimension 0."""
    return [*[Replicate()] * (mesh.ndim - 1), Shard(0)]


def shard(
    model: PreTrainedModel, device: torch.device, mesh: DeviceMesh, *, offload: bool, param_dtype: torch.dtype | None
) -> Root:
    """Shard all parameters of `model` in place over the ranks of `mesh`: an FSDP group per layer, and one for the rest.

    `model` must have been loaded inside `loaded_in_parts`. Gradients are summed over micro-batches and ranks in
    float32, or in float64 if the weights are in float64.

    Args:
        offload: keep parameters, gradients and optimizer state in CPU memory.
        param_dtype: dtype of gathered parameters; None: the dtype of the weights.
    """
    sums = torch.promote_types(model.dtype, torch.float32)
    options = {
        "mesh": mesh,
        "reshard_after_forward": True,  # also for the root: a pass without gradients must end with sharded weights
        "mp_policy": MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=sums, cast_forward_inputs=False),
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy(),
    }
    names = set(model._no_split_modules or ())
    root = Root(model)
    kept = _taken_out(model)
    modules = [module for module in model.modules() if type(module).__name__ in names]
    for module in [*modules, root]:
        fully_shard(module, **options)  # type: ignore[call-overload]  # the options are typed one by one
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    root.to_empty(device="cpu" if offload else device)
    targets = every_name(model)
    while kept:  # each part is freed when it has been copied
        place(targets, dict([kept.popitem()]))
    for value in model.buffers():  # FSDP2 offloads parameters only
        value.data = value.data.to(device)
    return root


class CompletePasses:
    """Runs passes with complete weights and gradients on every rank; the gradients are exchanged in the last pass.

    Args:
        num_passes: number of passes with gradients in an update, equal on all ranks.
    """

    def __init__(self, model: RunsPasses, root: Root, num_passes: int) -> None:
        self._model, self._root, self._num_passes = model, root, num_passes

    @property
    def device(self) -> torch.device:
        """See `RunsPasses.device`."""
        return self._model.device

    def run(self, batches: Iterable[MicroBatch], loss_of: LossOf, *, entropy_gradient: bool) -> None:
        """See `RunsPasses.run`."""

        def followed(number: int, outputs: Outputs) -> Tensor | None:
            if number == self._num_passes - 1 and torch.is_grad_enabled():
                self._keep(False)
            return loss_of(number, outputs)

        self._keep(True)
        try:
            self._model.run(batches, followed, entropy_gradient=entropy_gradient)
        finally:
            self._keep(False)

    def _keep(self, keep: bool) -> None:
        root = self._root
        assert isinstance(root, FSDPModule)
        root.set_reshard_after_forward(not keep)
        root.set_reshard_after_backward(not keep)
        root.set_requires_gradient_sync(not keep)


@contextmanager
def loaded_in_parts(mesh: DeviceMesh) -> Iterator[None]:
    """Inside the block, each weight that transformers loads is replaced by this rank's part, in CPU memory.

    A rank holds one complete weight at a time, or the experts of one layer. Buffers, and weights that are not in the
    checkpoint, such as a new head or adapter, stay complete on every rank. `mesh`: all ranks, on CPUs.
    """
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # otherwise transformers would load further weights in advance

    def replaced(_: nn.Module, __: str, value: nn.Parameter | None) -> nn.Parameter | None:
        if value is None or value.is_meta or isinstance(value, DTensor) or not hasattr(value, LOADED):
            return value
        own = part_of(value.detach(), mesh).clone()
        part = DTensor.from_local(own, mesh, placements(mesh), shape=value.shape, stride=value.stride())
        found = nn.Parameter(part, value.requires_grad)
        setattr(found, LOADED, True)
        return found

    hook = register_module_parameter_registration_hook(replaced)  # type: ignore[arg-type]  # it may return a parameter
    try:
        yield
    finally:
        hook.remove()


def _taken_out(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return all weights and buffers. In `model`, weights that were loaded in parts become shapes without values."""
    taken = {name: value.detach() for name, value in every_name(model).items()}
    shapes: dict[Tensor, nn.Parameter] = {}  # tied weights stay tied
    for module in model.modules():
        for name, value in [*module.named_parameters(recurse=False, remove_duplicate=False)]:
            if isinstance(value, DTensor):
                empty = torch.empty(value.shape, dtype=value.dtype, device="meta")
                setattr(module, name, shapes.setdefault(value, nn.Parameter(empty, value.requires_grad)))
    return taken


def place(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy `weights` (complete weights or this rank's parts) into `own`. A sharded weight gets this rank's part."""
    with torch.no_grad():
        for name, value in weights.items():
            target = own[name]
            if isinstance(target, DTensor):
                own_part = value.to_local() if isinstance(value, DTensor) else part_of(value, target.device_mesh)
                local_part(target).copy_(own_part)
            else:
                target.copy_(value)


def shard_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's part of optimizer state `value`, sharded like `parameter`; a single number is not sharded."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    found = torch.zeros_like(parameter, dtype=value.dtype, requires_grad=False)
    place({"": found}, {"": value})
    return found


def host_copy(value: Tensor, host: DeviceMesh) -> Tensor:
    """Copy the part of this rank to CPU memory; `host`: mesh of the tensor's ranks, on CPUs."""
    own = local_part(value).detach().to("cpu", copy=True)
    if not isinstance(value, DTensor):
        return own
    return DTensor.from_local(own, host, value.placements, shape=value.shape, stride=value.stride())


def local_part(value: Tensor) -> Tensor:
    """Return the part of a weight on this rank; for a weight that is not sharded, the complete weight."""
    return value.to_local() if isinstance(value, DTensor) else value


def part_of(value: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the rows of the complete tensor `value` that belong to this rank."""
    size, rank = mesh.size(-1), mesh.get_local_rank(mesh.ndim - 1)
    rows = -(-value.shape[0] // size)  # divided as by torch.chunk
    return value[rank * rows : (rank + 1) * rows]


def parts(value: Tensor) -> Iterator[torch.Size]:
    """Yield the shape of each part of a weight, in the order of the ranks that hold its first copy."""
    if not isinstance(value, DTensor):
        yield value.shape
        return
    size = value.device_mesh.size(-1)
    rows = -(-value.shape[0] // size)
    for rank in range(size):
        yield torch.Size([max(0, min(rows, value.shape[0] - rank * rows)), *value.shape[1:]])
