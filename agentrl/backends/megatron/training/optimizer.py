"""AdamW of megatron-core, with agentrl's schedule, clipping, and skipped non-finite updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor, nn

from agentrl.backends.torch.optim import learning_rate_scale
from agentrl.config.actor import OptimConfig
from agentrl.errors import ConfigError, Kind

AVERAGES = ("exp_avg", "exp_avg_sq")
MASTER = "master"
"""Name of the float32 copy of a weight that is trained in another data type."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What this process updates of a parameter: some of its values, in order.

    Attributes:
        values: the trained values; for a parameter in float32 a view of it, else a copy.
        span: their place in the flat parameter.
    """

    values: Tensor
    span: slice


class LayoutOptimizer:
    """Updates the parameters of a model's chunks on all processes; see `ScheduledOptimizer`.

    Args:
        chunks: wrapped by megatron-core's `DistributedDataParallel`.

    Raises:
        ConfigError: another optimizer than AdamW is configured.
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
    ) -> None:
        if config.name != "adamw":
            text = f"`actor.optim.name={config.name}`: `actor.backend=megatron` has only adamw"
            raise ConfigError.at("actor.optim.name", Kind.NOT_SUPPORTED, text)
        self._chunks, self._config, self._grad_clip = chunks, config, grad_clip
        self.num_updates = 0
        self._total_updates = config.total_updates or total_updates
        options = OptimizerConfig(
            optimizer="adam",
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
        self._optimizer = get_megatron_optimizer(options, [*chunks])

    def clear_gradients(self) -> None:
        """Set all gradients to 0."""
        for chunk in self._chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]  # a method of DistributedDataParallel
        self._optimizer.zero_grad()

    def step(self) -> dict[str, float]:
        """Do one update with the gradients of all processes; see `ScheduledOptimizer.step`."""
        scale = learning_rate_scale(self._config, self.num_updates, self._total_updates)
        self._optimizer.prepare_grads()
        grad_norm = float(self._optimizer.get_grad_norm())
        if finite := math.isfinite(grad_norm):
            for group in self._optimizer.param_groups:
                group["lr"] = self._config.peak_lr * scale
                group["weight_decay"] = self._config.weight_decay * group["wd_mult"]
            for inner in self._optimizer.chained_optimizers:
                clip_grads.clip_grad_by_total_norm_fp32(inner.get_parameters(), self._grad_clip, grad_norm)
            self._optimizer.step_with_ready_grads()
            self.num_updates += 1
        self.clear_gradients()
        return {"grad_norm": grad_norm, "lr": self._config.peak_lr * scale, "skipped_updates": float(not finite)}

    def refresh(self) -> None:
        """Copy the weights to the values that are trained, after the weights were replaced."""
        self._optimizer.reload_model_params()

    def state(self, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the complete state of a parameter of this process, in the parameter's shape, by name.

        All processes that update values of the parameter call this at once.
        """
        inner = self._inner(parameter)
        shard = _shard(inner, parameter)
        state = inner.optimizer.state[shard.values] if shard and self.num_updates else {}
        for name in AVERAGES if self.num_updates else ():
            yield name, self.complete(parameter, state.get(name))
        if parameter.dtype != torch.float32:
            yield MASTER, self.complete(parameter, shard.values if shard else None)

    def complete(self, parameter: Tensor, own: Tensor | None) -> Tensor:
        """Return numbers for all values of a parameter, from those for the values that each process updates.

        Args:
            own: the numbers of this process; None if it updates no value of the parameter.
        """
        inner = self._inner(parameter)
        shard = _shard(inner, parameter)
        found = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        if shard is not None and own is not None:
            found[shard.span] = own.flatten()
        if isinstance(inner, DistributedOptimizer):
            dist.all_reduce(found, group=inner.data_parallel_group)  # the others have 0
        return found.view(parameter.shape)

    def load_state(self, parameter: Tensor, complete: Mapping[str, Tensor], num_updates: int) -> None:
        """Restore the result of `state` after `num_updates` updates."""
        inner = self._inner(parameter)
        if (shard := _shard(inner, parameter)) is None:
            return
        own = {name: value.flatten()[shard.span].view(shard.values.shape) for name, value in complete.items()}
        if MASTER in own:
            with torch.no_grad():
                shard.values.copy_(own.pop(MASTER))
        state = {name: value.to(shard.values.device, copy=True) for name, value in own.items()}
        inner.optimizer.state[shard.values] = state | ({"step": torch.tensor(float(num_updates))} if state else {})

    def _inner(self, parameter: Tensor) -> Any:  # Any: megatron-core is untyped
        """Return the optimizer of a parameter: that of the experts, or that of all others."""
        return self._optimizer.chained_optimizers[0 if getattr(parameter, "allreduce", True) else 1]


def _shard(inner: Any, parameter: Tensor) -> Shard | None:
    if not isinstance(inner, DistributedOptimizer):
        return Shard(getattr(parameter, "main_param", parameter), slice(0, parameter.numel()))
    if (place := inner.model_param_group_index_map.get(parameter)) is None:
        return None
    group, number = place
    span = inner._get_model_param_range_map(parameter)["param"]
    return Shard(inner.optimizer.param_groups[group]["params"][number], slice(span.start, span.end))
