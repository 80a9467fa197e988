"""The tokenizer that saved rollouts were made with, held against the hashes they were written with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.loading import load_tokenizer, tokenizer_source
from agentrl.store.schema import TEMPLATE, VOCABULARY
from agentrl.trainer.checkpoint import newest
from agentrl.trainer.provenance import hashes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORDS = {VOCABULARY: "vocabulary", TEMPLATE: "chat template"}
"""The parts of a tokenizer that rollouts keep hashes of."""


@dataclass(frozen=True, slots=True)
class KeptTokenizer:
    """A tokenizer, and what is to be said of it; nothing where it is the one that was used."""

    tokenizer: PreTrainedTokenizerBase
    note: str


def load_kept_tokenizer(
    name: str,
    folder: Path | None,
    config: Mapping[str, JsonValue],
    provenances: Mapping[int, Mapping[str, str]],
    override: str | None,
) -> KeptTokenizer:
    """`override`, else that of the run's newest checkpoint, else that of the model the run began with.

    Code that ships with a tokenizer is never run, and only for an `override` is the hub asked, whatever the run says.

    Args:
        folder, config: of the run, as far as they are known.
        provenances: step -> that of its file of rollouts.

    Raises:
        ConfigError: there is none, or one that differs from what the rollouts were made with and was not asked for.
    """
    models = [ModelConfig(path=override)] if override else list(_own(name, folder, config))
    found = ((model, tokenizer) for model in models if (tokenizer := load_tokenizer(model)) is not None)
    model, tokenizer = next(found, (None, None))
    if model is None or tokenizer is None:
        raise ConfigError(f"no tokenizer: {_why_none(name, models, config)}: say --tokenizer FOLDER")
    used = model.tokenizer_path or model.path
    parts = [f"{WORDS[part]} ({part})" for part in changed(tokenizer, provenances)]
    if parts and not override:
        raise ConfigError(
            f"'{name}': the {' and the '.join(parts)} of the tokenizer in '{used}' changed since the rollouts were"
            " made: say --tokenizer FOLDER"
        )
    if parts:
        return KeptTokenizer(tokenizer, f"the {' and the '.join(parts)} of '{used}' are not the rollouts' own")
    known = any(VOCABULARY in kept for kept in provenances.values())
    return KeptTokenizer(tokenizer, "" if known else f"whether '{used}' made these rollouts is not known")


def changed(tokenizer: PreTrainedTokenizerBase, provenances: Mapping[int, Mapping[str, str]]) -> dict[str, int]:
    """Which parts of it (keys of `WORDS`) are not those that rollouts were made with -> the first step of those.

    Args:
        provenances: step -> what its file was written with; a part that is not kept is taken to be the same.
    """
    found = hashes(tokenizer)
    others = {
        part: [step for step, kept in provenances.items() if kept.get(part, found[part]) != found[part]]
        for part in WORDS
    }
    return {part: steps[0] for part, steps in others.items() if steps}


def _own(name: str, folder: Path | None, config: Mapping[str, JsonValue]) -> Iterator[ModelConfig]:
    """Those that lie on this machine: a file that came from elsewhere has nothing fetched."""
    checkpoint = newest(folder) if folder else None
    said = _said(config)
    for model in [*([{"path": str(checkpoint)}] if checkpoint else []), *([said] if said else [])]:
        try:
            read = ModelConfig.model_validate(model)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"'{name}': what was kept of its model cannot be read: {reason}") from None
        if Path(tokenizer_source(read)).is_dir():
            yield read


def _said(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """What it says of the tokenizer; other things, code among them, have no part in this."""
    kept = config.get("model")
    said = kept if isinstance(kept, dict) else {}
    return {key: said[key] for key in ("path", "tokenizer_path", "chat_template") if key in said}


def _why_none(name: str, models: Sequence[ModelConfig], config: Mapping[str, JsonValue]) -> str:
    if models:
        return f"there is none in '{models[-1].path}'"
    said = _said(config).get("tokenizer_path") or _said(config).get("path")
    return f"that of '{name}' is '{said}', no folder here" if said else f"'{name}' does not say which it was made with"
