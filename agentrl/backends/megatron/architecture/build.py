"""Build the chunks of a model on this process: one per pipeline stage, or several with virtual stages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_decoder_layer_specs
from megatron.core.post_training.modelopt.layers import Linear
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.moe.moe_layer import MoESubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from agentrl.backends.megatron.architecture.balancing import BalancedRouter, balances
from agentrl.backends.megatron.architecture.hybrid import HybridChunk
from agentrl.backends.megatron.architecture.layers import PackedAttention, RMSNorm
from agentrl.backends.megatron.architecture.model_config import rope_arguments
from agentrl.backends.megatron.architecture.prediction import PredictionLayers
from agentrl.errors import ConfigError, Kind

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# without TransformerEngine, `multi_latent_attention` has no `Linear`, although megatron-core defines one
multi_latent_attention.Linear = multi_latent_attention.Linear or Linear

_TENSOR = "actor.megatron.tensor_model_parallel_size"
_NORMS = ("q_layernorm", "k_layernorm", "kv_layernorm")
_DOWN_PROJECTIONS = ("linear_q_down_proj", "linear_kv_down_proj")


def build_chunks(
    config: TransformerConfig,
    hf: PretrainedConfig,
    make_head: Callable[[], nn.Module] | None = None,
    *,
    hybrid: bool = False,
    num_ahead: int = 0,
) -> list[LanguageModule]:
    """Return the chunks of this process, with uninitialised weights.

    If `config` was made by megatron-bridge, `config` itself builds the chunks.

    Args:
        make_head: makes a head that replaces the head of a language model.
        hybrid: build a `HybridModel`, the successor of the deprecated `GPTModel`.
        num_ahead: number of layers for multi-token prediction; 0: multi-token prediction is not trained.
    """
    num_chunks = config.virtual_pipeline_model_parallel_size
    make = partial(_chunk, _hybrid if hybrid else _gpt, config, hf, make_head)
    chunks = [make(number if num_chunks else None) for number in range(num_chunks or 1)]
    if num_ahead and chunks[-1].post_process:
        layer = layer_specs(config, chunks[-1].vp_stage).layer_specs[-1]
        chunks[-1].mtp = PredictionLayers(config, layer, num_ahead, chunks[-1])
    return chunks


def padded_vocabulary(hf: PretrainedConfig, config: TransformerConfig) -> int:
    """Return the embedding's number of rows: the vocabulary size, padded to a multiple of the tensor-parallel size.

    Raises:
        ConfigError: the last process would have only rows that are padding.
    """
    size: int = config.tensor_model_parallel_size
    rows = -(-int(hf.vocab_size) // size)
    if rows * (size - 1) >= hf.vocab_size:
        text = f"the vocabulary of {hf.vocab_size} tokens leaves a process without tokens: use a smaller size"
        raise ConfigError.at(_TENSOR, Kind.CONFLICT, f"`{_TENSOR}={size}`: {text}")
    return rows * size


def _gpt(config: TransformerConfig, options: dict[str, Any]) -> GPTModel:  # Any: untyped
    return GPTModel(config, layer_specs(config, options["vp_stage"]), **options)


def _hybrid(config: TransformerConfig, options: dict[str, Any]) -> HybridChunk:  # Any: untyped
    layers = get_gpt_decoder_layer_specs(config, use_transformer_engine=False, normalization="RMSNorm")
    return HybridChunk(config, [_portable(layer, config) for layer in layers], **options)


def _chunk(
    build: Callable[..., LanguageModule],
    config: TransformerConfig,
    hf: PretrainedConfig,
    make_head: Callable[[], nn.Module] | None,
    stage: int | None,
) -> LanguageModule:
    place = {
        "pre_process": parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        "post_process": parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        "vp_stage": stage,
    }
    tied = bool(hf.tie_word_embeddings) and make_head is None
    if hasattr(config, "provide"):
        config.share_embeddings_and_output_weights = tied
        model = config.provide(**place)
    else:
        model = build(config, _options(config, hf, place, tied))
    model.model_type = ModelType.encoder_or_decoder
    if model.post_process and make_head is not None:
        model.output_layer = make_head()
    if model.pre_process and hf.pad_token_id is not None:
        model.embedding.register_forward_hook(partial(_without_padding, hf.pad_token_id), with_kwargs=True)
    return model


def _options(
    config: TransformerConfig, hf: PretrainedConfig, place: dict[str, Any], tied: bool
) -> dict[str, Any]:  # Any: arguments of megatron-core
    return {
        "vocab_size": padded_vocabulary(hf, config),
        "max_sequence_length": hf.max_position_embeddings,
        "position_embedding_type": "rope",
        "share_embeddings_and_output_weights": tied,
        **rope_arguments(hf),
        **place,
    }


def _without_padding(
    pad_token_id: int, embedding: nn.Module, _: object, inputs: dict[str, Tensor], states: Tensor
) -> Tensor:
    """Stop the gradient at the embedding of the padding token, as transformers does."""
    is_padding = inputs["input_ids"].flatten() == pad_token_id
    if len(states) < len(is_padding):  # with sequence parallelism, `states` has a slice of the positions
        is_padding = is_padding.chunk(len(is_padding) // len(states))[parallel_state.get_tensor_model_parallel_rank()]
    return torch.where(is_padding[:, None, None], states.detach(), states)


def layer_specs(config: TransformerConfig, vp_stage: int | None = None) -> Any:  # Any: megatron-core is untyped
    """Return the layers of a chunk, in plain torch where megatron-core has only layers of TransformerEngine."""
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage)
    block.layer_specs = [_portable(layer, config) for layer in block.layer_specs]
    block.layer_norm = RMSNorm
    return block


def _portable(layer: Any, config: TransformerConfig) -> Any:
    """Replace modules that megatron-core has only for TransformerEngine, or that compute wrong results."""
    layer = copy.deepcopy(layer)
    for name in ("input_layernorm", "pre_mlp_layernorm"):
        _replace(layer.submodules, name, RMSNorm)
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    for name in _NORMS:
        _replace(attention, name, RMSNorm)
    for name in _DOWN_PROJECTIONS:
        # a column-parallel layer would not sum the gradient of the rotary keys over the tensor-parallel processes
        _replace(attention, name, Linear)
    experts = getattr(layer.submodules.mlp, "keywords", {}).get("submodules")
    if balances(config) and isinstance(experts, MoESubmodules):
        experts.router = BalancedRouter
    return layer


def _replace(submodules: Any, name: str, module: type) -> None:
    if getattr(submodules, name, None) not in (None, IdentityOp):
        setattr(submodules, name, module)
