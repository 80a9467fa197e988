"""The optimizer (AdamW, or Muon with AdamW): learning rate schedule, clipping, skipped non-finite updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentrl.backends.torch.cpu_offload import CpuOffload, Moves
from agentrl.config.actor import OptimConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.scalar import HEAD

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class _Part:
    """One torch optimizer, its peak learning rate, and the names of its parameters in order."""

    optimizer: torch.optim.Optimizer
    peak_lr: float
    names: list[str]


class ScheduledOptimizer:
    """Updates a model's parameters. The schedule counts completed updates, not skipped ones.

    Weight decay applies to parameters with at least two dimensions, so not to norms and biases. Muon, if configured,
    updates the hidden matrices. AdamW updates all other parameters, for example embeddings, the head, and experts that
    are stored as one three-dimensional tensor.

    Args:
        moves: keeps the optimizer's moving averages in CPU memory except during `step`; None: they are not moved.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: OptimConfig,
        grad_clip: float,
        total_updates: int,
        moves: Moves | None = None,
    ) -> None:
        self._config, self._grad_clip = config, grad_clip
        self._total_updates = config.total_updates or total_updates
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.num_updates = 0
        muon_names = _hidden_matrices(model) & set(self._parameters) if config.name == "muon" else set()
        self._parts = [self._adamw([name for name in self._parameters if name not in muon_names])]
        if muon_names:
            self._parts.append(self._muon([name for name in self._parameters if name in muon_names]))
        self._parking = CpuOffload(self._averages, moves)

    def step(self) -> dict[str, float]:
        """Do one update and clear the gradients; return `grad_norm`, `lr` and `skipped_updates` (0 or 1).

        If the gradient is not finite, the update is skipped: parameters and optimizer do not change.
        """
        scale = learning_rate_scale(self._config, self.num_updates, self._total_updates)
        gradients = [value.grad for value in self._parameters.values() if value.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        grad_norm = float(norm)
        if math.isfinite(grad_norm):
            torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), self._grad_clip, norm)
            self._update(scale)
        self.clear_gradients()
        skipped = not math.isfinite(grad_norm)
        return {"grad_norm": grad_norm, "lr": self._config.peak_lr * scale, "skipped_updates": float(skipped)}

    def clear_gradients(self) -> None:
        """Drop the gradients and free their memory."""
        for value in self._parameters.values():
            value.grad = None

    def _update(self, scale: float) -> None:
        with self._parking.in_use():
            for part in self._parts:
                for group in part.optimizer.param_groups:
                    group["lr"] = part.peak_lr * scale
                part.optimizer.step()
        self.num_updates += 1

    def _averages(self) -> list[Tensor]:
        states = [state for part in self._parts for state in part.optimizer.state.values()]
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def state_dict(self) -> dict[str, Any]:
        """Return moving averages and update counts as tensors and plain values, without the configuration."""
        parts = [{"names": part.names, "state": part.optimizer.state_dict()["state"]} for part in self._parts]
        return {"num_updates": self.num_updates, "parts": parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; learning rates and other options keep the configuration's values.

        Raises:
            ConfigError: the state was saved by another optimizer or for another model.
        """
        self._check_names(state)
        with self._parking.in_use():
            for part, saved in zip(self._parts, state["parts"], strict=True):
                groups = part.optimizer.state_dict()["param_groups"]
                part.optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
        self.num_updates = state["num_updates"]

    def named_state(self) -> dict[str, Tensor]:
        """Return the optimizer's own state tensors, not copies, under the names `<parameter>/<key>`."""
        states = ((name, self._state_of(part, name)) for part in self._parts for name in part.names)
        return {f"{name}/{key}": value for name, state in states for key, value in state.items()}

    def named_tensors(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """Return the tensors of a `state_dict` under the names of `named_state`.

        Raises:
            ConfigError: the state was saved by another optimizer or for another model.
        """
        self._check_names(state)
        found: dict[str, Tensor] = {}
        for part in state["parts"]:
            for number, name in enumerate(part["names"]):
                found |= {f"{name}/{key}": value for key, value in part["state"].get(number, {}).items()}
        return found

    def _check_names(self, state: dict[str, Any]) -> None:
        if [part["names"] for part in state["parts"]] != [part.names for part in self._parts]:
            raise ConfigError.at(
                "actor.optim.name",
                Kind.CONFLICT,
                f"optim.name '{self._config.name}' does not fit the checkpoint's optimizer state",
            )

    def load_named_state(self, found: Mapping[str, Tensor], num_updates: int) -> None:
        """Restore the tensors of `named_state`. A tensor on its parameter's device is used without a copy."""
        with self._parking.in_use():
            for part in self._parts:
                for name in part.names:
                    device = self._parameters[name].device  # fused updates need also the update count on the device
                    own = {key: value.to(device) for key, value in found.items() if key.rpartition("/")[0] == name}
                    self._state_of(part, name).update({key.rpartition("/")[2]: value for key, value in own.items()})
        self.num_updates = num_updates

    def _state_of(self, part: _Part, name: str) -> dict[str, Tensor]:
        state: dict[str, Tensor] = part.optimizer.state[self._parameters[name]]
        return state

    def _adamw(self, names: list[str]) -> _Part:
        config = self._config
        decayed = [name for name in names if self._parameters[name].ndim >= 2]
        others = [name for name in names if self._parameters[name].ndim < 2]
        groups = [
            {"params": self._pick(decayed), "weight_decay": config.weight_decay},
            {"params": self._pick(others), "weight_decay": 0.0},
        ]
        fused = {value.device.type for value in self._pick(names)} <= {"cpu", "cuda"}
        optimizer = torch.optim.AdamW(groups, lr=config.peak_lr, betas=config.betas, eps=config.eps, fused=fused)
        return _Part(optimizer, config.peak_lr, decayed + others)

    def _muon(self, names: list[str]) -> _Part:
        config = self._config
        optimizer = torch.optim.Muon(
            self._pick(names), lr=config.muon_lr, momentum=config.muon_momentum, weight_decay=config.weight_decay
        )
        return _Part(optimizer, config.muon_lr, names)

    def _pick(self, names: list[str]) -> list[Tensor]:
        return [self._parameters[name] for name in names]


def _hidden_matrices(model: PreTrainedModel) -> set[str]:
    heads = [model.get_output_embeddings(), getattr(model, HEAD, None)]
    outer = {id(head.weight) for head in heads if head is not None}
    outer |= {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {name for name, value in model.named_parameters() if value.ndim == 2 and id(value) not in outer}


def learning_rate_scale(config: OptimConfig, update: int, total_updates: int) -> float:
    """Return the factor of the peak learning rate at `update`, counted from 0.

    Warm-up: (update + 1) / W with W = lr_warmup_steps or lr_warmup_steps_ratio * total_updates. So the first update
    already has a positive rate, and the last warm-up update has the peak rate. Afterwards, with p from 0 to 1 over the
    remaining updates and m = min_lr_ratio:

        constant  1        linear  m + (1 - m) (1 - p)        cosine  m + (1 - m) (1 + cos(pi p)) / 2
    """
    warmup = config.lr_warmup_steps or int(config.lr_warmup_steps_ratio * total_updates)
    if update < warmup:
        return (update + 1) / warmup
    progress = min(1.0, (update - warmup) / max(1, total_updates - warmup))
    shapes = {"constant": 1.0, "linear": 1.0 - progress, "cosine": (1.0 + math.cos(math.pi * progress)) / 2}
    floor = config.min_lr_ratio
    return floor + (1.0 - floor) * shapes[config.lr_scheduler_type]
