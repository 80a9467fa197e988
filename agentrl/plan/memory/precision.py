"""Bytes of numbers in training and in the engines, from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.plan.shapes import Shape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes in training.

    Attributes:
        weight: of a weight that is no adapter.
        compute: of a number between matrix products: with autocast, 2.
    """

    weight: int
    compute: int

    @property
    def mixed(self) -> bool:
        """Whether activations are computed in another data type than that of the weights (autocast)."""
        return self.weight != self.compute

    @property
    def residual(self) -> int:
        """Bytes of a number of the states between layers."""
        return max(self.weight, self.compute)


def training_precision(config: RunConfig, shape: Shape) -> Precision:
    """Return the bytes of the actor, the critic and the reference."""
    weight = BYTES[shape.dtype if config.model.dtype == "auto" else config.model.dtype]
    autocast = config.actor.autocast
    return Precision(weight, weight if autocast is None else min(weight, BYTES[autocast]))


def engine_bytes(config: RunConfig, shape: Shape) -> int:
    """Return the bytes of a weight, and of a number in the KV cache, of an engine."""
    dtype = config.rollout.dtype if config.rollout.dtype != "auto" else config.model.dtype
    return BYTES[shape.dtype if dtype == "auto" else dtype]
