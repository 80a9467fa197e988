"""Rules about whether a parallel layout of Megatron fits the shape of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.config.megatron import MegatronConfig
from agentrl.config.rules.megatron import BALANCING, SECTION, has_layouts, no_sequence_parallel
from agentrl.config.rules.unused import unused, wrong
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind, Problem

_OF_EXPERTS = (
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "moe_token_dispatcher_type", "moe_router_dtype"),
    *BALANCING,
)
_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
_EXPERTS_OF_A_GROUP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes and features of a model, from its `config.json`, that a parallel layout must fit.

    Attributes:
        num_heads, num_key_value_heads: numbers of query heads and of key-value heads.
        intermediate_size: width of a dense feed-forward layer; 0 if every layer has experts.
        num_experts: number of routed experts of a layer; 0 for a dense model.
        expert_size: width of an expert.
        shared_size: width of all shared experts together; 0 without shared experts.
        experts_per_token: number of experts that the router chooses for a token.
        num_groups: number of groups into which the experts are divided; 1 without groups.
        groups_per_token: number of groups from which the router chooses a token's experts; 1 without groups.
        latent_attention: whether the model has multi-head latent attention (MLA).
        expert_bias: whether the router has a bias per expert, which balances the load without a loss.
        num_mtp_layers: number of layers for multi-token prediction.
        quantization: method that quantized the weights, such as fp8; empty if they are not quantized.
    """

    num_layers: int
    num_heads: int
    num_key_value_heads: int
    intermediate_size: int
    num_experts: int = 0
    expert_size: int = 0
    shared_size: int = 0
    experts_per_token: int = 0
    num_groups: int = 1
    groups_per_token: int = 1
    latent_attention: bool = False
    expert_bias: bool = False
    num_mtp_layers: int = 0
    quantization: str = ""


def check_layout(config: RunConfig, shape: ModelShape | None, key: str = "model.path") -> None:
    """Refuse a layout of Megatron that does not fit the model; a model of unknown shape is accepted.

    Args:
        key: the key that names the model, for error messages.

    Raises:
        ConfigError: one line per mistake.
    """
    if shape is None or not has_layouts(config):
        return
    if problems := list(wrong_for_model(config.actor.megatron, shape, key)):
        raise ConfigError(*problems)


def wrong_for_model(layout: MegatronConfig, shape: ModelShape, key: str = "model.path") -> Iterator[Problem]:
    """Yield the problems of a layout with a model."""
    if shape.quantization:
        yield quantized_weights(key, shape.quantization)
    yield from _wrong_layers(layout, shape.num_layers, key)
    yield from _wrong_attention(layout, shape, key)
    if shape.num_experts:
        yield from _wrong_experts(layout, shape, key)
    else:
        yield from unused(SECTION, layout, _OF_EXPERTS, f"experts, which the model of `{key}` does not have")
    yield from _wrong_options(layout, shape, key)


def quantized_weights(key: str, method: str) -> Problem:
    """Return the problem that Megatron cannot read the quantized weights of a model."""
    text = (
        f"`{key}`: the weights are quantized ('{method}', `quantization_config` in config.json), but Megatron trains"
        " bfloat16 and float32: convert the weights to bfloat16 and remove `quantization_config` (docs/megatron.md)"
    )
    return Problem(key, Kind.NOT_SUPPORTED, text)


def _wrong_layers(layout: MegatronConfig, num_layers: int, key: str) -> Iterator[Problem]:
    own = [number for name in _ENDS if (number := getattr(layout, name))]
    stages, chunks = layout.pipeline_model_parallel_size, layout.num_layer_chunks
    rest, others = num_layers - sum(own), stages - len(own)
    if (rest == 0) if others == 0 else (rest > 0 and rest % (others * chunks) == 0):
        return
    parts = f"`{SECTION}.virtual_pipeline_model_parallel_size={chunks}`"
    if own:
        text = f"leaves {rest} of the {num_layers} layers of `{key}` for the {others} other stages"
        text += f", each with {parts}" if chunks > 1 else ""
    else:
        divisor = f"x {parts} " if chunks > 1 else ""
        text = f"{divisor}does not divide the {num_layers} layers of `{key}`"
    text += f": change `{SECTION}.{_ENDS[0]}` or `{SECTION}.{_ENDS[1]}`"
    yield wrong(f"{SECTION}.pipeline_model_parallel_size", text, Kind.CONFLICT, value=stages)


def _wrong_attention(layout: MegatronConfig, shape: ModelShape, key: str) -> Iterator[Problem]:
    sizes = {"attention heads": shape.num_heads, "channels of the feed-forward layers": shape.intermediate_size}
    if not shape.latent_attention:
        sizes["key-value heads"] = shape.num_key_value_heads
    if shape.shared_size:
        sizes["channels of the shared experts"] = shape.shared_size
    for what, number in sizes.items():
        yield from _remainder("tensor_model_parallel_size", layout.tensor_model_parallel_size, number, what, key)


def _wrong_experts(layout: MegatronConfig, shape: ModelShape, key: str) -> Iterator[Problem]:
    sizes = (layout.expert_model_parallel_size, layout.expert_tensor_size)
    yield from _remainder("expert_model_parallel_size", sizes[0], shape.num_experts, "experts", key)
    yield from _remainder("expert_tensor_parallel_size", sizes[1], shape.expert_size, "channels of an expert", key)
    chosen = shape.experts_per_token / shape.groups_per_token
    if shape.num_groups > 1 and chosen != _EXPERTS_OF_A_GROUP:
        text = (
            f"chooses {shape.experts_per_token} experts from {shape.groups_per_token} groups: Megatron rates a group by"
            f" {chosen:g} experts, but transformers and SGLang by {_EXPERTS_OF_A_GROUP}; use another backend"
        )
        yield Problem(key, Kind.NOT_SUPPORTED, f"`{key}`: the router {text}")
    if not shape.expert_bias:
        yield from unused(SECTION, layout, ("moe_router_bias_update_rate",), f"an expert bias in the model of `{key}`")


def _wrong_options(layout: MegatronConfig, shape: ModelShape, key: str) -> Iterator[Problem]:
    needing = "experts" if shape.num_experts else "multi-head latent attention" if shape.latent_attention else ""
    if needing and layout.tensor_model_parallel_size > 1 and not layout.sequence_is_parallel:
        yield no_sequence_parallel(f"the {needing} of `{key}`")
    absent = {"moe": not shape.num_experts, "shared_experts": not shape.shared_size}
    for module in layout.recompute_modules:
        if absent.get(module):
            text = f"contains {module}, which the model of `{key}` does not have"
            yield wrong(f"{SECTION}.recompute_modules", text, Kind.CONFLICT)
    if not shape.num_mtp_layers:
        need = f"multi-token prediction layers in the model of `{key}`"
        yield from unused(SECTION, layout, ("mtp_loss_scaling_factor",), need)


def _remainder(name: str, size: int, number: int, what: str, key: str) -> Iterator[Problem]:
    if number % size:
        text = f"does not divide the {number} {what} of `{key}`"
        yield wrong(f"{SECTION}.{name}", text, Kind.CONFLICT, value=size)
