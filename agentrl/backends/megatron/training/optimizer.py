"""AdamW and Muon of megatron-core, with agentrl's schedule, clipping, and skipped non-finite updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.utils import get_model_config
from torch import Tensor, nn

from agentrl.backends.megatron.architecture.balancing import expert_biases
from agentrl.backends.megatron.architecture.prediction import SEPARATE
from agentrl.backends.torch.cpu_offload import CpuOffload, Moves
from agentrl.backends.torch.optim import learning_rate_scale
from agentrl.config.actor import ActorConfig, OptimConfig

_AVERAGES = ("exp_avg", "exp_avg_sq")
_MOMENTUM = "momentum_buffer"
MASTER = "master"
"""Name of the float32 copy of a weight that is trained in another data type."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The values of a parameter that this process updates, in order.

    Attributes:
        values: the updated values: a view if the parameter is in float32, else a float32 copy.
        span: place of the values in the flat parameter.
    """

    values: Tensor
    span: slice


class LayoutOptimizer:
    """Updates the parameters of a model's chunks on all processes; see `ScheduledOptimizer`.

    Args:
        chunks: wrapped by megatron-core's `DistributedDataParallel`.
        distributed: whether each data-parallel process updates only some of the values; see `divides_state`.
        moves: if given, averages and float32 copies of weights are in CPU memory, except inside `in_use` and `step`.
    """

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        config: OptimConfig,
        grad_clip: float,
        total_updates: int,
        dtype: torch.dtype,
        *,
        distributed: bool,
        moves: Moves | None = None,
    ) -> None:
        self._chunks, self._config, self._grad_clip = chunks, config, grad_clip
        self.num_updates = 0
        self._total_updates = config.total_updates or total_updates
        options = OptimizerConfig(
            **_kind(config),
            lr=config.peak_lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            clip_grad=grad_clip,
            bf16=dtype is torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=distributed,
        )
        if config.name == "muon":
            for chunk in chunks:
                mark_for_muon(chunk)
        self._optimizer = get_megatron_optimizer(options, [*chunks])
        self._owners = {value: inner for inner in self._optimizer.chained_optimizers for value in _values(inner)}
        self._parking = CpuOffload(self._held, moves)
        self._biases: list[tuple[Tensor, Tensor]] = []

    def clear_gradients(self) -> None:
        """Set all gradients to 0."""
        for chunk in self._chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]  # a method of DistributedDataParallel
        self._optimizer.zero_grad()

    def sum_gradients(self) -> None:
        """Sum the gradients of all processes.

        megatron-core also updates the routers' expert biases here. If `step` skips the update, `step` restores these
        biases.
        """
        changes = get_model_config(self._chunks[0]).moe_router_bias_update_rate
        biases = (bias for chunk in self._chunks for _, bias in expert_biases(chunk)) if changes else ()
        self._biases = [(bias, bias.clone()) for bias in biases]
        finalize_model_grads([*self._chunks])

    def step(self) -> dict[str, float]:
        """Do one update with the gradients of all processes; see `ScheduledOptimizer.step`."""
        with self.in_use():
            return self._step()

    def in_use(self) -> AbstractContextManager[None]:
        """Keep the state on its device inside the `with` block."""
        return self._parking.in_use()

    def _step(self) -> dict[str, float]:
        scale = learning_rate_scale(self._config, self.num_updates, self._total_updates)
        self._optimizer.prepare_grads()
        grad_norm = float(self._optimizer.get_grad_norm())
        separate = {name: float(norm) for name, norm in self._optimizer._compute_grad_norms_by_group().items()}
        if finite := math.isfinite(grad_norm):
            for group in self._optimizer.param_groups:
                peak = self._config.muon_lr if "momentum" in group else self._config.peak_lr  # only Muon has momentum
                group["lr"] = peak * scale
                group["weight_decay"] = self._config.weight_decay * group["wd_mult"]
            self._clip({None: grad_norm, **separate})
            self._optimizer.step_with_ready_grads()
            self.num_updates += 1
        else:
            for bias, before in self._biases:
                bias.copy_(before)
        self.clear_gradients()
        return {"grad_norm": grad_norm, "lr": self._config.peak_lr * scale, "skipped_updates": float(not finite)}

    def _clip(self, norms: Mapping[str | None, float]) -> None:
        """Clip the gradients of each group by the norm of the group; set them to 0 if this norm is not finite."""
        for inner, (group, norm) in product(self._optimizer.chained_optimizers, norms.items()):
            own = [value for value in inner.get_parameters() if getattr(value, SEPARATE, None) == group]
            if not math.isfinite(norm):
                for value in own:
                    value.grad.zero_()
            elif own:  # kernels of GPUs refuse an empty list
                clip_grads.clip_grad_by_total_norm_fp32(own, self._grad_clip, norm)

    def _held(self) -> list[Tensor]:
        """Return the tensors of this process that only the optimizer uses."""
        found: list[Tensor] = []
        for parameter in (value for chunk in self._chunks for value in chunk.parameters() if value.requires_grad):
            inner = self._inner(parameter)
            if (shard := _shard(inner, parameter)) is not None:
                state = inner.optimizer.state.get(shard.values, {})
                found += [state[name] for name in (*_AVERAGES, _MOMENTUM) if name in state]
                found += [] if parameter.dtype == torch.float32 else [shard.values]
        return found

    def refresh(self) -> None:
        """Copy the weights to their float32 copies, which `step` updates. Call this after the weights were replaced."""
        self._optimizer.reload_model_params()

    def state(self, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, value) of each state of a parameter of this process; a value has the shape of the parameter.

        All processes that update values of the parameter call this together.
        """
        inner = self._inner(parameter)
        shard = _shard(inner, parameter)
        state = inner.optimizer.state[shard.values] if shard and self.num_updates else {}
        for name in self.state_names(parameter, self.num_updates):
            copy = shard.values if shard else None
            yield name, self.complete(parameter, copy if name == MASTER else state.get(name))

    def state_names(self, parameter: Tensor, num_updates: int) -> Sequence[str]:
        """Names that `state` yields for a parameter after `num_updates` updates."""
        is_muons = any("momentum" in group for group in self._inner(parameter).param_groups)
        averages = [_MOMENTUM] if is_muons else _AVERAGES
        return [*(averages if num_updates else ()), *([] if parameter.dtype == torch.float32 else [MASTER])]

    def complete(self, parameter: Tensor, own: Tensor | None) -> Tensor:
        """Return one state of a parameter, complete; each process has only the state of the values that it updates.

        Args:
            own: the state of the values that this process updates; None if it updates no value of the parameter.
        """
        inner = self._inner(parameter)
        shard = _shard(inner, parameter)
        found = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        if shard is not None and own is not None:
            found[shard.span] = own.flatten()
        if isinstance(inner, DistributedOptimizer):
            dist.all_reduce(found, group=inner.data_parallel_group)  # other processes have 0 here
        return found.view(parameter.shape)

    def load_state(self, parameter: Tensor, complete: Mapping[str, Tensor], num_updates: int) -> None:
        """Restore the state that `state` returned after `num_updates` updates."""
        inner = self._inner(parameter)
        if (shard := _shard(inner, parameter)) is None:
            return
        own = {name: value.flatten()[shard.span].view(shard.values.shape) for name, value in complete.items()}
        if MASTER in own:
            with torch.no_grad():
                shard.values.copy_(own.pop(MASTER))
        state = {name: value.to(shard.values.device, copy=True) for name, value in own.items()}
        steps = {"step": torch.tensor(float(num_updates))} if _AVERAGES[0] in state else {}
        inner.optimizer.state[shard.values] = state | steps

    def _inner(self, parameter: Tensor) -> Any:  # Any: megatron-core is untyped
        """Return the optimizer of a parameter."""
        return self._owners[parameter if parameter in self._owners else parameter.main_param]  # type: ignore[attr-defined]  # set by megatron-core


def divides_state(config: ActorConfig) -> bool:
    """Whether each data-parallel process updates only some of the values. Muon needs complete matrices."""
    return config.megatron.use_distributed_optimizer and config.optim.name != "muon"


def _kind(config: OptimConfig) -> dict[str, Any]:  # Any: options of megatron-core
    """Return the options of the optimizer. With these options, Muon computes the same as `torch.optim.Muon`."""
    if config.name != "muon":
        return {"optimizer": "adam"}
    return {
        "optimizer": "muon",
        "muon_momentum": config.muon_momentum,
        "muon_nesterov": True,
        "muon_scale_mode": "shape_scaling",
        "muon_coefficient_type": "simple",
        "muon_tp_mode": "duplicated",
    }


def mark_for_muon(chunk: nn.Module) -> None:
    """Mark parameters so that Muon treats a chunk's weights like the weights of a transformers model.

    In transformers, gate and up projection are two matrices, so Muon updates the halves of `linear_fc1` separately. The
    experts of a layer are one three-dimensional weight, which AdamW updates, because Muon updates only matrices. So
    AdamW updates the experts of the chunk, too.
    """
    for name, value in chunk.named_parameters():
        marked: Any = value  # Any: megatron-core's attributes of parameters
        if ".local_experts." in name:
            marked.is_embedding_or_output_parameter = True  # not a matrix for Muon
        elif name.endswith("linear_fc1.weight"):
            marked.is_qkv, marked.qkv_split_shapes = True, [len(value) // 2] * 2


def _values(inner: Any) -> list[Tensor]:
    """Return the parameters of an optimizer (or their float32 copies), including those that other processes update."""
    if isinstance(inner, DistributedOptimizer):
        return [value for buffer in inner.buffers for value in buffer.params]
    return [value for group in inner.param_groups for value in group["params"]]


def _shard(inner: Any, parameter: Tensor) -> Shard | None:
    if not isinstance(inner, DistributedOptimizer):
        return Shard(getattr(parameter, "main_param", parameter), slice(0, parameter.numel()))
    if (place := inner.model_param_group_index_map.get(parameter)) is None:
        return None
    group, number = place
    span = inner._get_model_param_range_map(parameter)["param"]
    return Shard(inner.optimizer.param_groups[group]["params"][number], slice(span.start, span.end))
