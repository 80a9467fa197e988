"""Create an embedded engine from the configuration."""

from __future__ import annotations

from transformers import PretrainedConfig

from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.torch.engine import MAX_NUM_SEQS, TorchEngine
from agentrl.errors import ConfigError, Kind
from agentrl.models.adapters import adapter_randomized
from agentrl.models.images import ImageInputs, load_image_model
from agentrl.models.loading import find_device, load_model, load_tokenizer


def load_torch_engine(
    model_config: ModelConfig,
    rollout_config: RolloutConfig,
    max_sequence_length: int,
    images: ImageInputs | None = None,
) -> TorchEngine:
    """Load the model `model.path` onto `rollout.device` and create its engine.

    Args:
        max_sequence_length: longest context plus completion of the run, in tokens.
        images: the model's processor, if requests may have images.

    Raises:
        ConfigError: the model does not exist, is not a causal language model, cannot be loaded as configured, or its
            context is too short.
    """
    dtype = None if rollout_config.dtype == "auto" else rollout_config.dtype
    device = find_device(rollout_config.device, "rollout.device")
    model = (load_image_model if images else load_model)(model_config, device, dtype)
    _check_length(model.config, max_sequence_length)
    with adapter_randomized(model):  # the engine tests the model's forward pass, which must include the adapter
        return TorchEngine(
            model,
            max_num_seqs=rollout_config.max_num_seqs or MAX_NUM_SEQS,
            max_sequence_length=max_sequence_length,
            max_kv_tokens=rollout_config.max_kv_tokens,
            deterministic=rollout_config.deterministic,
            tokenizer=load_tokenizer(model_config),
            images=images,
        )


def _check_length(config: PretrainedConfig, max_sequence_length: int) -> None:
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit and max_sequence_length > limit:
        raise ConfigError.at(
            "data.max_response_length",
            Kind.CONFLICT,
            f"the model's context of {limit} tokens is shorter than data.max_prompt_length + data.max_response_length,"
            f" {max_sequence_length}",
        )
