"""Builds the options of the SGLang servers that a run starts, from the configuration of the run."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

import torch
from pydantic import JsonValue
from transformers import AutoConfig

from agentrl.config.model import Dtype, ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.sglang.servers.command import Options, integer, num_gpus
from agentrl.engines.sglang.weights.delta import LOADER
from agentrl.errors import ConfigError, Kind, install_command
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.loading import tokenizer_source

CPU_KV_TOKENS = 32768
SET_ELSEWHERE = {
    "model_path": "model.path",
    "model": "model.path",
    "tokenizer_path": "model.tokenizer_path",
    "trust_remote_code": "model.trust_remote_code",
    "dtype": "rollout.dtype",
    "host": "rollout.sglang.urls for servers elsewhere",
    "port": "rollout.sglang.urls for servers elsewhere",
    "weight_version": "nothing: agentrl counts policy versions",
    "enable_memory_saver": "rollout.sglang.colocate",
    "enable_return_routed_experts": "rollout.routed_experts",
    "custom_weight_loader": "rollout.weight_sync=delta",
}


def server_options(model: ModelConfig, rollout: RolloutConfig, max_sequence_length: int, index: int = 0) -> Options:
    """Options of the server of replica number `index`; `rollout.sglang.server_args` has precedence.

    Args:
        max_sequence_length: longest context plus completion of the run, in tokens.

    Raises:
        ConfigError: SGLang is not installed, or `server_args` has a key that is set elsewhere.
    """
    check_installed()
    given = rollout.sglang.options
    _refuse_keys_set_elsewhere(given)
    on_cpu = given.get("device", None if torch.cuda.is_available() else "cpu") == "cpu"
    own = _model_options(model, rollout.dtype, on_cpu) | _rollout_options(rollout, on_cpu)
    place = _cpu_options(rollout, max_sequence_length) if on_cpu else _gpu_options(rollout, given, index)
    return {**own, **place, **{key: value for key, value in given.items() if key != "base_gpu_id"}}


def check_installed() -> None:
    """Check that SGLang is installed.

    Raises:
        ConfigError: SGLang is not installed. The message has the install command.
    """
    if importlib.util.find_spec("sglang") is None:
        raise ConfigError.at(
            "rollout.engine",
            Kind.NOT_FOUND,
            f"rollout.engine=sglang starts SGLang servers, but sglang is not installed: {install_command('sglang')}"
            " on a machine with a GPU, `make sglang` without one; or name running servers in rollout.sglang.urls",
        )


def _model_options(model: ModelConfig, dtype: Dtype, on_cpu: bool) -> Options:
    adapter = find_adapter(model.path)
    base = adapter.base if adapter else model.path  # adapters are merged into the weights that are sent later
    tokenizer = tokenizer_source(model)
    return {
        "model_path": base,
        "tokenizer_path": None if tokenizer == base else tokenizer,
        "trust_remote_code": model.trust_remote_code,
        "dtype": _dtype(base, model, dtype, on_cpu),
    }


def _dtype(base: str, model: ModelConfig, dtype: Dtype, on_cpu: bool) -> str:
    """Dtype of the server's model.

    SGLang's default for a float32 model is float16, whose range is too small for training. SGLang's GPU kernels do not
    support float32, so a float32 model is served as bfloat16 on GPUs.
    """
    if dtype != "auto":
        return dtype
    trained = model.dtype if model.dtype != "auto" else _saved_dtype(base, model)
    return "bfloat16" if trained == "float32" and not on_cpu else trained


def _saved_dtype(base: str, model: ModelConfig) -> str:
    config = AutoConfig.from_pretrained(base, trust_remote_code=model.trust_remote_code).get_text_config()
    return str(config.dtype or "auto").removeprefix("torch.")


def _rollout_options(rollout: RolloutConfig, on_cpu: bool) -> Options:
    return {
        "max_running_requests": rollout.max_num_seqs,
        "max_total_tokens": rollout.max_kv_tokens,
        "enable_priority_scheduling": True,
        "default_priority_value": 0,
        "disable_priority_preemption": True,  # preemption would discard running requests
        "enable_return_routed_experts": rollout.routed_experts,
        "enable_memory_saver": rollout.sglang.colocate,
        "custom_weight_loader": [LOADER] if rollout.weight_sync == "delta" else None,
        "enable_deterministic_inference": rollout.deterministic and not on_cpu,
    }


def _cpu_options(rollout: RolloutConfig, max_sequence_length: int) -> Options:
    """Options for the CPU. Without them, SGLang uses nearly all memory for KV, and keeps one core busy while idle."""
    if rollout.sglang.colocate:
        raise ConfigError.at(
            "rollout.sglang.colocate",
            Kind.UNUSED,
            "rollout.sglang.colocate frees a GPU's memory, but this machine has no GPU: remove it",
        )
    num_tokens = rollout.max_kv_tokens or max(CPU_KV_TOKENS, max_sequence_length)
    return {"device": "cpu", "max_total_tokens": num_tokens, "sleep_on_idle": True}


def _gpu_options(rollout: RolloutConfig, given: Mapping[str, JsonValue], index: int) -> Options:
    """Options for GPUs: from `base_gpu_id` on, every replica gets the next `tp_size` * `pp_size` GPUs."""
    return {"base_gpu_id": (integer(given, "base_gpu_id") or 0) + index * num_gpus(given)}


def _refuse_keys_set_elsewhere(given: Mapping[str, JsonValue]) -> None:
    for key in given.keys() & SET_ELSEWHERE.keys():
        raise ConfigError.at(
            f"rollout.sglang.server_args.{key}",
            Kind.NOT_SUPPORTED,
            f"rollout.sglang.server_args.{key}: set {SET_ELSEWHERE[key]} instead",
        )
