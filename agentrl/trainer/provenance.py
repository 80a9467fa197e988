"""What the tokens of a stored trajectory mean nothing without: its tokenizer and its chat template, as hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.loading import load_tokenizer
from agentrl.store import TrajectoryStore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCABULARY, TEMPLATE = "tokenizer_sha256", "chat_template_sha256"


def provenance(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """SHA-256 of the vocabulary and of the chat template, each as JSON."""
    parts = {VOCABULARY: tokenizer.get_vocab(), TEMPLATE: tokenizer.chat_template}
    return {name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest() for name, part in parts.items()}


def check_vocabulary(store: TrajectoryStore, folder: Path, model: ModelConfig) -> None:
    """Refuse trajectories whose tokens are not the model's; a model without a tokenizer is taken at its word.

    Raises:
        ConfigError: they were made with another vocabulary.
    """
    made_with = store.provenance(store.steps[0]).get(VOCABULARY)
    tokenizer = load_tokenizer(model)
    if made_with and tokenizer and provenance(tokenizer)[VOCABULARY] != made_with:
        raise ConfigError(
            f"'trainer.saved_rollouts': those in '{folder}' were made with another tokenizer than that of model.path"
            f" '{model.path}'"
        )
