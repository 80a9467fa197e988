"""Provenance of stored trajectories: configuration, tool schemas, and hashes of the tokenizer and the chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.agent_loops.loading import read_entries
from agentrl.config.document import redacted
from agentrl.config.model import ModelConfig
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.loading import load_tokenizer
from agentrl.store import TrajectoryStore
from agentrl.store.schema import CONFIG, HAS_TOKENS, IMPORTED_FROM, MADE_BY, TEMPLATE, TOOLS, VOCABULARY
from agentrl.tools.environments.spec import environment_name
from agentrl.types.messages import ToolSchema
from agentrl.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["CONFIG", "MADE_BY", "TEMPLATE", "TOOLS", "VOCABULARY", "check_vocabulary", "hashes", "provenance"]

LOOPS, ENVIRONMENT, REPLAYED_FROM = "loops", "environment", "replayed_from"


def provenance(tokenizer: PreTrainedTokenizerBase, config: RunConfig, tools: Sequence[ToolSchema]) -> dict[str, str]:
    """Return the metadata of a trajectory file.

    - `tokenizer_sha256`, `chat_template_sha256`: SHA-256 of the vocabulary and of the template, each as JSON
    - `config`: the configuration as JSON, secrets redacted
    - `tools`: the schemas of all tools as a JSON list, as chat templates receive them
    - `loops`: the names of the agent loops in `rollout.agent.agent_loop_config_path`, as a JSON list
    - `environment`: the name of the environment, "" if there is none
    - `agentrl`: the version that wrote the file

    Rollouts of a replay also have `replayed_from`: `<mode> of <run>`, for example `from-turn 1 of outputs/run@60`.

    Raises:
        ConfigError: the file of agent loops cannot be read.
    """
    loops = config.rollout.agent.agent_loop_config_path
    return {
        **hashes(tokenizer),
        CONFIG: json.dumps(redacted(config)),
        TOOLS: json.dumps([schema.for_template() for schema in tools]),
        LOOPS: json.dumps(sorted(read_entries(loops)) if loops else []),
        ENVIRONMENT: environment_name(config.rollout.multi_turn.environment or ""),
        MADE_BY: __version__,
    }


def hashes(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return the SHA-256 of the vocabulary and of the chat template, each as JSON."""
    parts = {VOCABULARY: tokenizer.get_vocab(), TEMPLATE: tokenizer.chat_template}
    return {name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest() for name, part in parts.items()}


def check_vocabulary(store: TrajectoryStore, folder: Path, model: ModelConfig) -> None:
    """Check that stored trajectories use the model's vocabulary. Not checked if the model has no tokenizer.

    Raises:
        ConfigError: the trajectories use another vocabulary, or were imported and have no tokens.
    """
    kept = store.provenance(store.steps[0])
    if IMPORTED_FROM in kept and HAS_TOKENS not in kept:
        raise ConfigError.at(
            "trainer.saved_rollouts",
            Kind.NOT_SUPPORTED,
            f"`trainer.saved_rollouts`: the rollouts in '{folder}' were imported and have no tokens to train on:"
            " export them as dialogues (`agentrl export-rollouts --format messages`) and use algorithm.name=sft",
        )
    made_with = kept.get(VOCABULARY)
    tokenizer = load_tokenizer(model)
    if made_with and tokenizer and hashes(tokenizer)[VOCABULARY] != made_with:
        raise ConfigError.at(
            "trainer.saved_rollouts",
            Kind.CONFLICT,
            f"`trainer.saved_rollouts`: the rollouts in '{folder}' were made with another tokenizer than the one of"
            f" model.path '{model.path}'",
        )
