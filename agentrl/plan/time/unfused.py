"""Seconds of memory traffic and kernel launches that add to the seconds of the matrix products.

These seconds are added only for layers of the transformers library on a GPU. For Megatron's fused layers, and on CPUs,
which launch no kernels, `share_of_peak` includes these seconds. The constants were fitted on one H200
(`benchmarks/one_gpu.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from agentrl.plan.hardware import Hardware
from agentrl.plan.layout import Layout
from agentrl.plan.memory.activations import Kept
from agentrl.plan.memory.precision import Precision
from agentrl.plan.shapes import Shape
from agentrl.plan.time.passes import Passes

_TRAFFIC = 4
"""Bytes that a forward pass reads and writes for each byte that a layer keeps for its backward pass."""
_LOGIT_PASSES = 8
"""How often a forward pass reads or writes the logits in float32."""
_ADAPTED = 1.75
"""Launches of a layer with adapters (LoRA), as a multiple of the launches without adapters."""
_ADAPTED_TRAFFIC = 1.6
"""Memory traffic with adapters, as a multiple of the traffic without adapters: adapter outputs are scaled and added."""


@dataclass(frozen=True)
class Unfused:
    """Layers that run transformers' modules."""

    shape: Shape
    layout: Layout
    hardware: Hardware
    passes: Passes

    @property
    def exists(self) -> bool:
        """Whether seconds of launches and traffic are added: only for transformers' layers on a GPU."""
        return self.layout.kind != "megatron" and self.hardware.layer_overhead_ms > 0

    def traffic_s(self, tokens: float, forwards: float) -> float:
        """Return the seconds of the memory traffic for `tokens` tokens of a device.

        Args:
            forwards: 1 to score, more to train.
        """
        if not self.exists:
            return 0.0
        return self._passes(forwards) * tokens * self._bytes_per_token / self.hardware.bytes_per_s

    @cached_property
    def _bytes_per_token(self) -> float:
        size = 4 if self.passes.number == "fp32" else 2
        kept = Kept(self.shape, self.layout, Precision(size, size), adapters=int(self.passes.frozen))
        layers = sum(kept.layer(sparse=self.shape.is_sparse(number)) for number in range(self.shape.num_layers))
        adapted = _ADAPTED_TRAFFIC if self.passes.frozen else 1
        return _TRAFFIC * adapted * layers + _LOGIT_PASSES * 4 * self.shape.vocabulary

    def launches_s(self, forwards: float) -> float:
        """Return the seconds that the CPU needs to launch all operations; the device computes at the same time."""
        if not self.exists:
            return 0.0
        of_layer = self.hardware.layer_overhead_ms / 1e3 * (_ADAPTED if self.passes.frozen else 1)
        return self._passes(forwards) * self.shape.num_layers * of_layer

    def _passes(self, forwards: float) -> int:
        """Return the number of forward passes with the traffic and launches of the work that `forwards` describes.

        The number is the same with and without LoRA.
        """
        return 3 + self.passes.recompute if forwards > 1 else 1
