"""Bytes that a layer keeps for its backward pass, counted from the tensors that autograd saves for each token.

`docs/plan.md` lists the formulas, `benchmarks/plan_memory.py` compares them with measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.plan.layout import Layout
from agentrl.plan.memory.precision import Precision
from agentrl.plan.shapes import Shape

_FLOAT, _LONG = 4, 8
_GATED = 5
"""Numbers that Megatron keeps for each channel of a feed-forward layer: gate, up, up again, activation, product."""
_ADAPTED_IN_ATTENTION, _ADAPTED_IN_MLP = 4, 3
"""Number of linear layers with an adapter: in attention, and in the MLP. An adapter keeps `rank` numbers per token."""
_ROTATIONS = 4
"""Number of arrays with the cosines and sines of the rotary position embedding, for queries and keys."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Properties of a model and a run that determine how many bytes a layer keeps.

    Attributes:
        adapters: rank of LoRA adapters; 0 without adapters.
        on_cpu: whether the devices are CPUs, where norms of Megatron have no fused kernel.
        copies_keys: whether attention copies queries and keys of packed samples, as on a CPU.
    """

    shape: Shape
    layout: Layout
    precision: Precision
    adapters: int = 0
    on_cpu: bool = False
    copies_keys: bool = False

    def layer(self, *, sparse: bool) -> float:
        """Bytes that a layer keeps per token of this device without recomputation. `sparse`: the layer has experts."""
        if self.layout.kind == "megatron":
            return _megatron(self, sparse=sparse)
        return _norms(self, sparse=sparse) + _attention(self) + (_experts(self) if sparse else _dense(self))

    def predicting(self, *, sparse: bool) -> float:
        """Bytes of a layer for multi-token prediction: a usual layer, and three norms.

        The bytes of a norm include its output, which is an input of the projection or of the head.
        """
        return self.layer(sparse=sparse) + 3 * _megatron_norm(self) * self.shape.hidden / _slices(self.layout)

    @property
    def boundary(self) -> float:
        """Bytes per token of a layer's input. With complete recomputation, the layer keeps only its input."""
        return self.precision.residual * self.shape.hidden / _slices(self.layout)

    def working(self) -> float:
        """Bytes per token of the gradients in the backward pass of one layer, estimated from its widest tensors."""
        shape = self.shape
        chosen = shape.experts_per_token * (2 * shape.expert_size + shape.hidden)
        widest = max(2 * shape.intermediate, chosen, shape.attention.heads * shape.attention.head_dim)
        return self.precision.residual * (shape.hidden + widest / self.layout.tensor)


def _slices(layout: Layout) -> int:
    """Number of parts into which the states between layers are divided along the positions (sequence parallelism)."""
    return layout.tensor if layout.sequence_parallel else 1


def _norms(kept: Kept, *, sparse: bool) -> float:
    """Bytes of the norms of a layer: the normalized states in float32, and the outputs of the norms.

    The norms' outputs are kept, because they are the inputs of the linear layers. With autocast, each linear layer
    keeps a separate copy of its input in the lower precision. Norms with trained weights also keep their input in
    float32.
    """
    hidden, precision = kept.shape.hidden, kept.precision
    casts = 3 + (1 if sparse else 2) if precision.mixed else 2
    if kept.adapters:
        return hidden * (2 * _FLOAT + casts * precision.compute)
    if precision.mixed:
        return hidden * (4 * _FLOAT + casts * precision.compute + (_FLOAT if sparse else 0))
    return 2 * hidden * (_FLOAT + 2 * precision.compute)


def _attention(kept: Kept) -> float:
    shape, size = kept.shape, kept.precision.compute
    of = shape.attention
    queries, keys, values = of.heads * of.head_dim, of.kv_heads * of.head_dim, of.kv_heads * of.value_dim
    outputs = of.heads * of.value_dim
    found: float = size * (queries + keys + values + outputs) + _FLOAT * of.heads
    if kept.copies_keys:
        found += size * outputs
    if shape.normed_heads:
        normed = queries + keys
        found += normed * (_FLOAT if kept.adapters else _FLOAT + size) + _FLOAT * (of.heads + of.kv_heads)
    if of.is_latent:
        found += (of.query_rank + of.kv_rank) * (_FLOAT + 2 * size) + size * (of.kv_rank + of.rope_dim)
    return found + _ADAPTED_IN_ATTENTION * size * kept.adapters


def _dense(kept: Kept) -> float:
    """Bytes of gate, activation, up-projection, the product that the down-projection reads, and adapter states."""
    return kept.precision.compute * (4 * kept.shape.intermediate + _ADAPTED_IN_MLP * kept.adapters)


def _experts(kept: Kept) -> float:
    """Bytes of the router, the chosen experts and the shared experts for each token.

    Each chosen expert keeps its sorted input, gate, up, activation, product and output. With autocast, all of
    these tensors are in float32.
    """
    shape, size = kept.shape, kept.precision.residual
    of_token = shape.experts_per_token * (size * (2 * shape.hidden + 4 * shape.expert_size) + 4 * _LONG + 1)
    routed = of_token + _FLOAT * shape.experts
    return routed + 4 * shape.shared_size * kept.precision.compute


def _megatron(kept: Kept, *, sparse: bool) -> float:
    """Bytes of a layer of megatron-core, in which agentrl has replaced norm and attention by plain torch code."""
    shape, size, layout = kept.shape, kept.precision.compute, kept.layout
    parts, norm = _slices(layout), _megatron_norm(kept)
    found = 2 * norm * shape.hidden / parts + _megatron_attention(kept)
    gated = _GATED * size
    if not sparse:
        return found + gated * shape.intermediate / layout.tensor
    chosen = shape.experts_per_token * (size * 2 * shape.hidden / parts + gated * shape.expert_size / layout.tensor)
    return found + chosen + _FLOAT * shape.experts / parts + gated * shape.shared_size / layout.tensor


def _megatron_attention(kept: Kept) -> float:
    """Bytes of the joint projection, rotated queries and keys, outputs (twice), and norms per head if there are any."""
    shape, size = kept.shape, kept.precision.compute
    of = shape.attention
    queries, keys = of.heads * of.head_dim, of.kv_heads * of.head_dim
    values, outputs = of.kv_heads * of.value_dim, of.heads * of.value_dim
    found: float = size * (2 * (queries + keys) + values + 2 * outputs) + _FLOAT * of.heads
    if shape.normed_heads:
        inner = _megatron_norm(kept) - size
        found += (queries + keys) * inner - (size * keys if inner == 2 * size else 0)
    found = found / kept.layout.tensor + _ROTATIONS * size * of.head_dim
    if of.is_latent:
        found += (of.query_rank + of.kv_rank) * _megatron_norm(kept) + size * of.rope_dim
    return found


def _megatron_norm(kept: Kept) -> int:
    """Bytes for each channel of a norm: the norm keeps its input, and the next linear layer keeps the norm's output.

    Without a fused kernel, the norm also keeps the normalized input, in float32.
    """
    size = kept.precision.compute
    return 2 * _FLOAT + size if kept.on_cpu else 2 * size
