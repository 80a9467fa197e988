"""Configurations of megatron-core that megatron-bridge makes, for the model families in `model_config.BRIDGED`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig

from agentrl.backends.megatron.architecture.build import layer_specs, padded_vocabulary
from agentrl.backends.megatron.architecture.model_config import run_options
from agentrl.config.megatron import MegatronConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def bridged_config(
    bridge: Any,  # Any: megatron-bridge is untyped
    hf: PretrainedConfig,
    dtype: torch.dtype,
    layout: MegatronConfig,
    *,
    recompute: bool,
) -> TransformerConfig:
    """Return the bridge's configuration of a model in this layout.

    This configuration object also builds the model, see `build_chunks`.

    Args:
        bridge: the `AutoBridge` of the model.
        recompute: see `transformer_config`.
    """
    found: TransformerConfig = bridge.to_megatron_provider(load_weights=False)
    for name, value in (run_options(hf, dtype, layout, recompute=recompute) | _PLAIN).items():
        setattr(found, name, value)
    found.transformer_layer_spec = layer_specs
    found.vocab_size = padded_vocabulary(hf, found)
    found._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    found.finalize()
    return found


_PLAIN = {
    "fp16": False,
    "apply_rope_fusion": False,
    "attention_backend": AttnBackend.auto,
    "deallocate_pipeline_outputs": False,
    "mtp_num_layers": None,
}
"""Replacements for options that the bridge sets for TransformerEngine or for pretraining."""
