"""A chunk as megatron-core's `HybridModel`, the successor of its `GPTModel`.

In a `HybridModel`, attention and feed-forward network are separate layers, so each layer of the model becomes two.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.models.hybrid.hybrid_layer_allocation import Symbols
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn

from agentrl.backends.megatron.architecture.layers import RMSNorm

PARTS_OF_A_LAYER = 2


def layer_of(part: Any, chunk: nn.Module) -> int:  # Any: megatron-core is untyped
    """Return the index of the complete model's layer that contains a layer or router of megatron-core."""
    return int(part.layer_number - 1) // (PARTS_OF_A_LAYER if isinstance(chunk, HybridChunk) else 1)


class HybridChunk(HybridModel):  # type: ignore[misc]  # megatron-core is untyped
    """A `HybridModel` with the arguments of `GPTModel` that this backend uses.

    Args:
        config: the configuration of a `GPTModel`.
        layers: the specification of each layer of the complete model.
    """

    post_process: bool

    def __init__(
        self,
        config: TransformerConfig,
        layers: Sequence[Any],  # Any: megatron-core is untyped
        *,
        rotary_base: float,
        rotary_percent: float,
        rope_scaling: bool,
        rope_scaling_factor: float,
        **options: Any,  # Any: as above
    ) -> None:
        options |= {"rotary_base": rotary_base, "rotary_percent": rotary_percent}
        super().__init__(_doubled(config), _stack(config, layers), hybrid_layer_pattern=pattern(config), **options)
        if rope_scaling:
            self.rotary_pos_emb = RotaryEmbedding(
                config.kv_channels,
                rotary_percent,
                rotary_base=rotary_base,
                rope_scaling=rope_scaling,
                rope_scaling_factor=rope_scaling_factor,
                use_cpu_initialization=config.use_cpu_initialization,
                cp_group=self.pg_collection.cp,
            )

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention_mask: None,
        *,
        packed_seq_params: PackedSeqParams,
        output_processor: Callable[..., Tensor],
        output_processor_context: object,
    ) -> Tensor:
        """Return the states for the next stage; on the last stage the result of `output_processor`."""
        states = self._states(token_ids, positions, packed_seq_params)
        if not self.post_process:
            return states
        shared = self.share_embeddings_and_output_weights
        return output_processor(
            hidden_states=states,
            output_layer=self.output_layer,
            output_weight=self.shared_embedding_or_output_weight() if shared else None,
            context=output_processor_context,
        )

    def _states(self, token_ids: Tensor, positions: Tensor, bounds: PackedSeqParams) -> Tensor:
        has_head, self.post_process = self.post_process, False  # without a head, megatron-core returns the states
        try:
            states: Tensor = super().forward(token_ids, positions, None, packed_seq_params=bounds)
        finally:
            self.post_process = has_head
        return states


class _Stack(HybridStack):  # type: ignore[misc]  # megatron-core is untyped
    """Layers whose last norm does not come from TransformerEngine."""

    def __init__(
        self,
        config: TransformerConfig,
        submodules: HybridStackSubmodules,
        *,
        post_process: bool,
        **options: Any,  # Any: as above
    ) -> None:
        super().__init__(config, submodules, post_process=post_process, post_layer_norm=False, **options)
        self.post_layer_norm = True
        if post_process:
            self.final_norm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)


def pattern(config: TransformerConfig) -> str:
    """Return a symbol per layer (`*` attention, `-` MLP, `E` experts), and `|` between stages: `*-*-|*E*E`."""
    attention = Symbols.MLA if config.multi_latent_attention else Symbols.ATTENTION
    layers = [attention + (Symbols.MOE if sparse else Symbols.MLP) for sparse in _has_experts(config)]
    num_chunks = config.virtual_pipeline_model_parallel_size
    sizes = [
        get_num_layers_to_build(config, vp_stage=chunk if num_chunks else None, pp_rank=stage)
        for chunk in range(num_chunks or 1)
        for stage in range(config.pipeline_model_parallel_size)
    ]
    bounds = accumulate(sizes, initial=0)
    return "|".join("".join(layers[start:stop]) for start, stop in pairwise(bounds))


def _has_experts(config: TransformerConfig) -> list[int]:
    if config.num_moe_experts is None:
        return [0] * config.num_layers
    return [*config.moe_layer_freq]


def _doubled(config: TransformerConfig) -> TransformerConfig:
    """Return the configuration with the layer counts of `HybridModel`; `pattern` defines the stages."""
    found = copy.copy(config)
    found.num_layers *= PARTS_OF_A_LAYER
    found.num_layers_in_first_pipeline_stage = found.num_layers_in_last_pipeline_stage = None
    if found.recompute_num_layers:
        found.recompute_num_layers *= PARTS_OF_A_LAYER
    return found


def _stack(config: TransformerConfig, layers: Sequence[Any]) -> ModuleSpec:
    attention = _attention(layers[0])
    kinds = {"mla_layer" if config.multi_latent_attention else "attention_layer": attention}
    for layer, sparse in zip(layers, _has_experts(config), strict=True):
        kinds["moe_layer" if sparse else "mlp_layer"] = _feed_forward(layer)
    return ModuleSpec(module=_Stack, submodules=HybridStackSubmodules(**kinds))


def _attention(layer: Any) -> ModuleSpec:
    given = layer.submodules
    own = TransformerLayerSubmodules(
        input_layernorm=given.input_layernorm, self_attention=given.self_attention, self_attn_bda=given.self_attn_bda
    )
    return ModuleSpec(module=TransformerLayer, submodules=own)


def _feed_forward(layer: Any) -> ModuleSpec:
    given = layer.submodules
    own = TransformerLayerSubmodules(pre_mlp_layernorm=given.pre_mlp_layernorm, mlp=given.mlp, mlp_bda=given.mlp_bda)
    return ModuleSpec(module=TransformerLayer, submodules=own)
