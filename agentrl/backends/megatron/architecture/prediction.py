"""Layers for multi-token prediction, which follow a model's last layer (DeepSeek-AI 2024, arXiv:2412.19437, 2.2).

Axes: S tokens of this process, H hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.multi_token_prediction import get_mtp_layer_spec_for_backend
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from agentrl.backends.megatron.architecture.layers import RMSNorm

PREFIX = "mtp."
"""Prefix of these layers' parameter names in a chunk."""
SEPARATE = "grad_norm_group"
"""Attribute of megatron-core for parameters whose gradients are clipped separately, with a norm of their own."""


class PredictionLayers(nn.Module):
    """The layers on the last pipeline stage. Layer k, from 1, predicts the token k + 1 positions ahead.

    A layer normalizes the state of a position and the embedding of the token k positions ahead, and applies a linear
    projection to [embedding, state]. A transformer layer and a norm follow. The state is the output of the previous
    layer after its norm; for the first layer, it is the output of the model after its last norm, as in vLLM and SGLang.

    Args:
        config: the configuration of the model, in which these layers are not counted.
        layer: the specification of the transformer layer.

    Attributes:
        config: the configuration of these layers.
    """

    def __init__(self, config: TransformerConfig, layer: ModuleSpec, num_layers: int, chunk: LanguageModule) -> None:
        super().__init__()
        self.config = _config(config, num_layers)
        options = {"config": self.config, "vp_stage": chunk.vp_stage, "pg_collection": chunk.pg_collection}
        numbers = range(1, num_layers + 1)
        self.layers = nn.ModuleList(build_module(_spec(layer), layer_number=each, **options) for each in numbers)
        for value in self.parameters():
            setattr(value, SEPARATE, "mtp")

    def forward(
        self,
        states_S1H: Tensor,
        token_ids: Tensor,
        bounds: PackedSeqParams,
        rotary: Tensor | None,
        embed: Callable[..., Tensor],
    ) -> list[Tensor]:
        """Return the states after each layer, [S, 1, H]; the head computes predictions from them.

        Args:
            states_S1H: states of the model after its last norm.
            token_ids: [1, S].
            rotary: rotary embeddings; None with latent attention, which computes its own.
            embed: returns the embeddings of `input_ids`, [S, 1, H].
        """
        found = []
        for layer in self.layers:
            states_S1H, token_ids, _, _ = layer(
                input_ids=token_ids,
                position_ids=None,  # `embed` and `rotary` know the positions
                hidden_states=states_S1H,
                attention_mask=None,
                rotary_pos_emb=rotary,
                packed_seq_params=bounds,
                embedding=embed,
            )
            found.append(states_S1H)
        return found


def _config(config: TransformerConfig, num_layers: int) -> TransformerConfig:
    found = copy.copy(config)
    found.mtp_num_layers = num_layers
    if found.recompute_method == "block":  # "block" does not recompute layers for multi-token prediction
        found.recompute_granularity = None
    elif found.recompute_granularity == "full":
        found.recompute_num_layers = 1
    return found


def _spec(layer: ModuleSpec) -> Any:  # Any: megatron-core is untyped
    found = get_mtp_layer_spec_for_backend(layer, LocalSpecProvider())
    for name in ("enorm", "hnorm", "layer_norm"):
        setattr(found.submodules, name, RMSNorm)
    return found
