"""From a configuration to an embedded engine."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel

from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.torch_engine import TorchEngine
from agentrl.errors import ConfigError


def load_torch_engine(
    model_config: ModelConfig, rollout_config: RolloutConfig, max_sequence_length: int
) -> TorchEngine:
    """Load the model `model.path` names onto `rollout.device` and embed it.

    Args:
        max_sequence_length: longest context with its completion that the run will ask for, in tokens.

    Raises:
        ConfigError: there is no such model, it is not a causal language model, it cannot be loaded as configured, or
            its context is too short.
    """
    config = _config(model_config)
    _check_length(config, max_sequence_length)
    model = _model(model_config, rollout_config, config).to(torch_device(rollout_config.device))
    return TorchEngine(
        model,
        max_num_seqs=rollout_config.max_num_seqs,
        max_sequence_length=max_sequence_length,
        max_kv_tokens=rollout_config.max_kv_tokens,
        deterministic=rollout_config.deterministic,
        tokenizer=AutoTokenizer.from_pretrained(
            model_config.tokenizer_path or model_config.path, trust_remote_code=model_config.trust_remote_code
        ),
    )


def torch_device(name: str) -> torch.device:
    """The device called `name`; auto is the CUDA GPU where there is one.

    Raises:
        ConfigError: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # what torch raises depends on how it was built
        raise ConfigError(f"rollout.device '{name}' cannot be used: {str(error).splitlines()[0]}") from error


def _config(model_config: ModelConfig) -> PretrainedConfig:
    try:
        config = AutoConfig.from_pretrained(model_config.path, trust_remote_code=model_config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path '{model_config.path}' cannot be read: {str(error).splitlines()[0]}") from error
    if config.is_encoder_decoder:
        raise ConfigError(f"model.path '{model_config.path}' is an encoder-decoder; a causal language model is needed")
    return config


def _check_length(config: PretrainedConfig, max_sequence_length: int) -> None:
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit and max_sequence_length > limit:
        raise ConfigError(f"the model's context of {limit} tokens is shorter than the {max_sequence_length} asked for")


def _model(model_config: ModelConfig, rollout_config: RolloutConfig, config: PretrainedConfig) -> PreTrainedModel:
    dtype = model_config.dtype if rollout_config.dtype == "auto" else rollout_config.dtype
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            model_config.path,
            config=config,
            dtype=dtype,
            attn_implementation=model_config.attn_implementation,
            trust_remote_code=model_config.trust_remote_code,
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model.path '{model_config.path}' cannot be loaded: {str(error).splitlines()[0]}") from error
    return model
