"""Bytes per number in training and in the engines, from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.plan.shapes import Shape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per number in training.

    Attributes:
        weight: bytes of a weight that is not part of an adapter.
        compute: bytes of a number in the inputs and outputs of matrix products; 2 with autocast.
    """

    weight: int
    compute: int

    @property
    def mixed(self) -> bool:
        """Whether activations have another data type than the weights (autocast)."""
        return self.weight != self.compute

    @property
    def residual(self) -> int:
        """Bytes of a number in the hidden states between layers."""
        return max(self.weight, self.compute)


def training_precision(config: RunConfig, shape: Shape) -> Precision:
    """Return the bytes per number of the actor, the critic and the reference."""
    weight = BYTES[shape.dtype if config.model.dtype == "auto" else config.model.dtype]
    autocast = config.actor.autocast
    return Precision(weight, weight if autocast is None else min(weight, BYTES[autocast]))


def engine_bytes(config: RunConfig, shape: Shape) -> int:
    """Return the bytes per number of an engine's weights and KV cache."""
    dtype = config.rollout.dtype if config.rollout.dtype != "auto" else config.model.dtype
    return BYTES[shape.dtype if dtype == "auto" else dtype]
