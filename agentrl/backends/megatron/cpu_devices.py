"""Redirect the CUDA calls of megatron-core to the CPU. `platform` checks the version of megatron-core.

gloo cannot gather or reduce-scatter parts of different sizes, so this module builds both from gloo's all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import clip_grads, optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from megatron.core.tensor_parallel import mappings
from megatron.core.tensor_parallel import random as tracked_random
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Inside this mode, code that asks for the device cuda gets tensors on the CPU. Memory is never page-locked."""

    # Any: as in torch's protocol
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        options = dict(kwargs or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = CPU
        if options.get("pin_memory"):
            options["pin_memory"] = False
        return func(*args, **options)


class _Stream:
    """Stands for a CUDA stream. Operations on the CPU are complete when they return."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, _: object) -> None: ...

    def wait_event(self, _: object) -> None: ...

    def record_event(self, *_: object) -> _Event:
        return _Event()

    def synchronize(self) -> None: ...


class _Event:
    """Stands for a CUDA event that has already happened."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def record(self, *_: object) -> None: ...

    def wait(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


@contextmanager
def _in_stream(_: object) -> Iterator[None]:
    yield


def redirect_calls() -> None:
    """Redirect the calls until this process ends."""
    _redirect_torch()
    _redirect_random_states()
    _redirect_type_checks()
    mappings._gather_along_first_dim = _with_sizes(mappings._gather_along_first_dim, _gathered)
    mappings._reduce_scatter_along_first_dim = _with_sizes(mappings._reduce_scatter_along_first_dim, _summed)
    # both modules refer to this function by a global name
    moe_utils.maybe_move_tensor_to_cpu = token_dispatcher.maybe_move_tensor_to_cpu = _moved


def _redirect_torch() -> None:
    default = _Stream()
    replaced: dict[str, Any] = {  # Any: functions and classes of torch.cuda
        "current_device": lambda: CPU,
        "set_device": lambda _: None,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "Stream": _Stream,
        "Event": _Event,
        "current_stream": lambda *_: default,
        "default_stream": lambda *_: default,
        "stream": _in_stream,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "is_current_stream_capturing": lambda: False,
    }
    for name, function in replaced.items():
        setattr(torch.cuda, name, function)
    setattr(torch.cuda.random, "get_rng_state", replaced["get_rng_state"])  # noqa: B010  # mypy refuses a lambda
    for name in ("range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, lambda *_: None)
    setattr(Tensor, "cuda", lambda value, *_, **__: value)  # noqa: B010  # mypy refuses to assign a method


def _redirect_random_states() -> None:
    """Let megatron-core track the states of the CPU's random generator instead of the GPU's."""
    tracked_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)

    @contextmanager
    def fork(self: Any, name: str = tracked_random._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
        outer = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outer)

    tracked_random.CudaRNGStatesTracker.fork = fork


def _redirect_type_checks() -> None:
    """Let CPU tensors pass the checks of optimizers that compare `Tensor.type()` with names of CUDA types."""
    DistributedOptimizer.__init__ = _as_cuda_types(DistributedOptimizer.__init__)
    Float16OptimizerWithFloat16Params.__init__ = _as_cuda_types(Float16OptimizerWithFloat16Params.__init__)
    clip = _as_cuda_types(clip_grads.clip_grad_by_total_norm_fp32)
    clip_grads.clip_grad_by_total_norm_fp32 = optimizer.clip_grad_by_total_norm_fp32 = clip


def _as_cuda_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """Inside `function`, `Tensor.type()` names the CUDA type of the same dtype."""
    plain = Tensor.type

    def named(value: Tensor, *args: Any, **kwargs: Any) -> Any:  # Any: as in torch
        found = plain(value, *args, **kwargs)
        if args or kwargs or found.startswith("torch.cuda."):  # inside `OnCpu`, `plain` calls `named` again
            return found
        return found.replace("torch.", "torch.cuda.", 1)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        setattr(Tensor, "type", named)  # noqa: B010  # mypy refuses to assign a method
        try:
            return function(*args, **kwargs)
        finally:
            setattr(Tensor, "type", plain)  # noqa: B010

    return called


def _with_sizes(function: Callable[..., Tensor], own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that calls `own` if it gets `sizes`, the different sizes of the parts; else `function`."""

    @wraps(function)
    def called(
        values: Tensor, group: dist.ProcessGroup, sizes: list[int] | None = None, use_global_buffer: bool = False
    ) -> Tensor:
        return function(values, group, sizes, use_global_buffer) if sizes is None else own(values, group, sizes)

    return called


def _gathered(values: Tensor, group: dist.ProcessGroup, sizes: list[int]) -> Tensor:
    """Return the parts of all processes of a group, one after the other."""
    found = values.new_empty((sum(sizes), *values.shape[1:]))
    copies = values.repeat(len(sizes), *(1 for _ in values.shape[1:]))
    dist.all_to_all_single(found, copies, sizes, [len(values)] * len(sizes), group=group)
    return found


def _summed(values: Tensor, group: dist.ProcessGroup, sizes: list[int]) -> Tensor:
    """Sum the values of all processes, and return this process's part of the sum."""
    own = sizes[group.rank()]
    found = values.new_empty((len(sizes) * own, *values.shape[1:]))
    dist.all_to_all_single(found, values.contiguous(), [own] * len(sizes), sizes, group=group)
    return found.view(len(sizes), own, *values.shape[1:]).sum(0)


def _moved(value: Tensor, as_numpy: bool = False, record_stream: bool = False) -> Any:  # Any: a tensor or an array
    """Return token counts in the form that dispatchers expect; the counts are already on the CPU."""
    return value.numpy() if as_numpy and isinstance(value, Tensor) else value
