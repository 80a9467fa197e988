"""Bytes of a model on one device of a layout: weights, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from agentrl.config.actor import ActorConfig
from agentrl.plan.layout import Layout
from agentrl.plan.memory.precision import Precision
from agentrl.plan.shapes import Shape, Weights, sum_of

FLOAT = 4
_AVERAGES = {"adamw": 2, "muon": 1}
"""Optimizer -> moving averages per weight of a hidden matrix. With `muon`, AdamW updates the weights that are not in
hidden matrices."""
_LINEAR_LAYERS = 3
"""Number of linear layers in a gated feed-forward layer."""


@dataclass(frozen=True, slots=True)
class State:
    """Bytes of one model on a device.

    Attributes:
        gradients: 0 for a model that is not trained.
        optimizer: moving averages, and float32 copies of weights.
    """

    weights: float = 0
    gradients: float = 0
    optimizer: float = 0

    def __add__(self, other: State) -> State:
        return State(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def with_scalar_head(shape: Shape) -> Shape:
    """Return the shape of a model's critic: one output per token, and no layers for multi-token prediction."""
    return replace(shape, outer=replace(shape.outer, head=shape.hidden), tied=False, mtp=())


def state_of(
    shape: Shape, layout: Layout, precision: Precision, actor: ActorConfig, *, stage: int, trained: bool, rank: int = 0
) -> State:
    """Return the bytes of one model on a device of a pipeline stage.

    Args:
        trained: whether the model is trained; false if it only scores.
        rank: rank of the trained LoRA adapters; 0: all weights are trained.
    """
    own = own_weights(shape, layout, stage, ahead=trained and predicts_ahead(layout, actor))
    if not trained:
        return State(own.total * precision.weight)
    if rank:
        size = adapter_size(shape, layout, stage, rank)
        frozen = State(own.total * precision.weight)
        return frozen + _trained(layout, Weights(attention=ceil(size)), Precision(FLOAT, FLOAT), actor, shape)
    return _trained(layout, own, precision, actor, shape)


def own_weights(shape: Shape, layout: Layout, stage: int, *, ahead: bool = False) -> Weights:
    """Return the numbers of weights on one device of a stage.

    Args:
        ahead: whether layers for multi-token prediction are trained; Megatron has them on the last stage.
    """
    layers = [shape.layers[number] for number in layout.stages(shape.num_layers)[stage]]
    if layout.kind != "megatron":
        return _sharded(sum_of(layers) + shape.outer, layout.fsdp_size, shape)
    tensor = layout.tensor
    first, last = stage == 0, stage == layout.pipeline - 1
    layers += shape.mtp if last and ahead else ()
    whole = sum_of(layers)
    copied = _latent_down(shape) * len(layers)
    table = table_size(shape, layout)
    return Weights(
        embeddings=table if first or (last and shape.tied) else 0,
        head=0 if not last or shape.tied else (table if shape.outer.head > shape.hidden else shape.outer.head),
        attention=ceil((whole.attention - copied) / tensor) + copied,
        dense=ceil(whole.dense / tensor),
        experts=ceil(whole.experts / (layout.expert * layout.expert_tensor)),
        router=whole.router,
        shared=ceil(whole.shared / tensor),
        norms=whole.norms + (shape.hidden if last else 0),
    )


def predicts_ahead(layout: Layout, actor: ActorConfig) -> bool:
    """Whether layers for multi-token prediction are trained, if the model has any."""
    return layout.kind == "megatron" and actor.megatron.mtp_loss_scaling_factor > 0


def table_size(shape: Shape, layout: Layout) -> int:
    """Number of embedding weights on one device, for a Megatron stage with the embedding."""
    return ceil(shape.vocabulary / layout.tensor) * shape.hidden


def _latent_down(shape: Shape) -> int:
    """Number of attention weights per layer that TP does not divide: the down-projections of latent attention."""
    of = shape.attention
    return shape.hidden * (of.query_rank + of.kv_rank + of.rope_dim) if of.is_latent else 0


def _sharded(whole: Weights, size: int, shape: Shape) -> Weights:
    """Return the numbers of weights of one rank.

    FSDP2 shards the first dimension, which for experts is the number of experts.
    """
    parts = {name: ceil(getattr(whole, name) / size) for name in Weights.__dataclass_fields__}
    if shape.experts:
        parts["experts"] = whole.experts // shape.experts * ceil(shape.experts / size)
    return Weights(**parts)


def adapter_size(shape: Shape, layout: Layout, stage: int, rank: int) -> float:
    """Number of weights of LoRA adapters on one device: (inputs + outputs) x rank for each linear layer."""
    layers = layout.stages(shape.num_layers)[stage]
    channels = sum(_channels(shape, layout, sparse=shape.is_sparse(layer)) for layer in layers)
    return rank * channels / (layout.fsdp_size * layout.tensor)


def _channels(shape: Shape, layout: Layout, *, sparse: bool) -> int:
    """Number of inputs and outputs of a layer's linear layers with an adapter.

    The transformers library stores the experts of a layer as one tensor, not as linear layers, so they have no adapter.
    """
    of, hidden = shape.attention, shape.hidden
    queries, values = of.heads * of.head_dim, of.heads * of.value_dim
    if of.is_latent:
        up = of.heads * (of.head_dim - of.rope_dim + of.value_dim)
        down = 2 * hidden + of.query_rank + of.kv_rank + of.rope_dim
        found = down + (of.query_rank or hidden) + queries + of.kv_rank + up + values + hidden
    else:
        found = 4 * hidden + 2 * queries + of.kv_heads * (of.head_dim + of.value_dim)
    widths = [shape.shared_size] if sparse else [shape.intermediate]
    if sparse and layout.kind == "megatron":
        widths += [shape.expert_size] * ceil(shape.experts / layout.expert)
    return found + sum(_LINEAR_LAYERS * (hidden + width) for width in widths if width)


def _trained(layout: Layout, own: Weights, precision: Precision, actor: ActorConfig, shape: Shape) -> State:
    averages, total = _averages(own, actor.optim.name), own.total
    if layout.kind != "megatron":
        return State(total * precision.weight, total * precision.weight, averages * precision.weight)
    divides = layout.megatron.use_distributed_optimizer and actor.optim.name != "muon"
    dense, experts = (layout.dense_copies, layout.expert_copies) if divides else (1, 1)
    share = ((total - own.experts) / dense + own.experts / experts) / max(1, total)
    copies = 0 if precision.weight == FLOAT else total
    return State(total * precision.weight, total * FLOAT, share * FLOAT * (averages + copies))


def _averages(own: Weights, optimizer: str) -> int:
    """Number of moving averages in the optimizer. Muon leaves the experts, which are one stacked tensor, to AdamW."""
    matrices = own.attention + own.dense + own.router + own.shared
    return 2 * (own.total - matrices) + _AVERAGES[optimizer] * matrices


def gathered(shape: Shape, layout: Layout, precision: Precision, *, trained: bool, resharded: bool = True) -> float:
    """Bytes of gathered tensors in FSDP2.

    These are the weights of two layers, the gradients of one layer, and all weights and gradients outside of layers.

    Args:
        resharded: value of `actor.reshard_after_forward`; false: all weights and all gradients (float32) stay gathered.
    """
    if layout.kind != "fsdp":
        return 0
    if not resharded:
        return shape.weights.total * (precision.compute + (FLOAT if trained else 0))
    outer, largest = shape.outer.total, max((layer.total for layer in shape.layers), default=0)
    return precision.compute * (outer + 2 * largest + ((outer + largest) if trained else 0))


def cast_copies(layers: Sequence[Weights], layout: Layout, precision: Precision) -> float:
    """Bytes of bfloat16 copies of weights, which autocast keeps until the backward pass. FSDP2 needs none."""
    if not precision.mixed or layout.kind != "torch":
        return 0
    whole = sum_of(layers)
    return precision.compute * (whole.attention + whole.dense + whole.router + whole.shared)
