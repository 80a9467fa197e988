"""Size, context length and shape of a model, read only from its `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from agentrl.config.resolve import ModelFacts
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.folder import CONFIG_FILE, is_folder
from agentrl.models.shape import model_shape, number


def model_facts(path: str) -> ModelFacts:
    """Return facts about the model in a folder or on the hub; empty facts if `config.json` cannot be read.

    Only this small file is read. Errors in the folder are reported when the model is loaded.

    Raises:
        ConfigError: see `model_content`.
    """
    shape = model_content(path)
    context = number(shape, "max_position_embeddings", "n_positions")
    return ModelFacts(_num_parameters(shape), context, model_shape(shape))


def model_content(path: str) -> dict[str, object]:
    """Return the content of `config.json`, updated with its `text_config`; empty if unreadable.

    For an adapter, this is the configuration of the base model.

    Raises:
        ConfigError: the path is not a folder, and the hub has no such model or cannot be reached; or the configuration
            of an adapter is invalid.
    """
    try:
        if adapter := find_adapter(path):
            path = adapter.base
        file = Path(path) / CONFIG_FILE if is_folder(path) else _of_hub(path)
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):  # OSError includes the errors of the hub
        return {}
    if not isinstance(content, dict):
        return {}
    text = content.get("text_config")
    return {**content, **text} if isinstance(text, dict) else content


def _num_parameters(shape: Mapping[str, object]) -> int | None:
    """Count the weights of the embeddings, and of attention and feed-forward parts (all experts) in each layer."""
    hidden, layers = number(shape, "hidden_size", "n_embd"), number(shape, "num_hidden_layers", "n_layer")
    vocabulary = number(shape, "vocab_size")
    if hidden is None or layers is None or vocabulary is None:
        return None
    heads = number(shape, "num_attention_heads", "n_head") or 1
    head = number(shape, "head_dim") or hidden // heads
    queries, keys = heads * head, (number(shape, "num_key_value_heads") or heads) * head
    inner = number(shape, "moe_intermediate_size", "intermediate_size", "n_inner") or 4 * hidden
    experts = number(shape, "num_experts", "num_local_experts", "n_routed_experts") or 1
    layer = 2 * hidden * (queries + keys) + 3 * hidden * inner * experts
    return vocabulary * hidden * (1 if shape.get("tie_word_embeddings") else 2) + layers * layer


def _of_hub(name: str) -> Path:
    """Return the model's `config.json`, downloaded from the hub to the hub's cache."""
    from huggingface_hub import hf_hub_download  # imported only for hub models

    from agentrl.utils.hub import TIMEOUT_S, check_hub

    check_hub(name, "model.path")
    return Path(hf_hub_download(name, CONFIG_FILE, etag_timeout=TIMEOUT_S))
