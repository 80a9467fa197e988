"""Load the tokenizer that saved rollouts were made with, and check it against the saved hashes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.loading import load_tokenizer, tokenizer_source
from agentrl.run_folder.checkpoints import newest
from agentrl.run_folder.provenance import hashes
from agentrl.store.schema import TEMPLATE, VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PARTS = {VOCABULARY: "vocabulary", TEMPLATE: "chat template"}
"""The parts of a tokenizer whose hashes are saved with the rollouts."""


@dataclass(frozen=True, slots=True)
class SavedTokenizer:
    """A tokenizer, and a note for the user. The note is empty if the tokenizer is known to be the rollouts' own."""

    tokenizer: PreTrainedTokenizerBase
    note: str


def load_saved_tokenizer(
    name: str,
    folder: Path | None,
    config: Mapping[str, JsonValue],
    provenances: Mapping[int, Mapping[str, str]],
    override: str | None,
) -> SavedTokenizer:
    """Load the tokenizer of the rollouts: `override` if it is given, or else the run's own tokenizer.

    The run's own tokenizer is read from the newest checkpoint. If there is none, it is read from the folder that the
    saved configuration names (`model.tokenizer_path` or `model.path`).

    Code that ships with a tokenizer is never run. The hub is used only for an `override`.

    Args:
        folder, config: the run's folder and configuration, if known.
        provenances: step -> provenance of the file with the step's rollouts.

    Raises:
        ConfigError: no tokenizer is found; or there is no `override`, and the tokenizer that is found differs from the
            rollouts' tokenizer.
    """
    models = [ModelConfig(path=override)] if override else list(_candidates(name, folder, config))
    found = ((model, tokenizer) for model in models if (tokenizer := load_tokenizer(model)) is not None)
    model, tokenizer = next(found, (None, None))
    if model is None or tokenizer is None:
        raise ConfigError.keyless(f"no tokenizer: {_why_none(name, models, config)}: give --tokenizer FOLDER")
    used = model.tokenizer_path or model.path
    parts = [f"{PARTS[part]} ({part})" for part in changed(tokenizer, provenances)]
    if parts and not override:
        raise ConfigError.keyless(
            f"'{name}': the tokenizer in '{used}' has another {' and another '.join(parts)} than the rollouts:"
            " give --tokenizer FOLDER"
        )
    if parts:
        return SavedTokenizer(
            tokenizer, f"the tokenizer in '{used}' has another {' and another '.join(parts)} than the rollouts"
        )
    known = any(VOCABULARY in hashed for hashed in provenances.values())
    note = f"unknown whether the rollouts were made with the tokenizer in '{used}'"
    return SavedTokenizer(tokenizer, "" if known else note)


def changed(tokenizer: PreTrainedTokenizerBase, provenances: Mapping[int, Mapping[str, str]]) -> dict[str, int]:
    """Return the parts of `tokenizer` that differ from the saved hashes: key of `PARTS` -> first step that differs.

    Args:
        provenances: step -> provenance of the file with the step's rollouts. A part without a saved hash counts as
            unchanged.
    """
    found = hashes(tokenizer)
    others = {
        part: [step for step, saved in provenances.items() if saved.get(part, found[part]) != found[part]]
        for part in PARTS
    }
    return {part: steps[0] for part, steps in others.items() if steps}


def _candidates(name: str, folder: Path | None, config: Mapping[str, JsonValue]) -> Iterator[ModelConfig]:
    """Candidate models that exist on this machine. A name in a saved file never causes a download."""
    checkpoint = newest(folder) if folder else None
    saved = _tokenizer_keys(config)
    for model in [*([{"path": str(checkpoint)}] if checkpoint else []), *([saved] if saved else [])]:
        try:
            read = ModelConfig.model_validate(model)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError.keyless(f"'{name}': the saved model configuration is invalid: {reason}") from None
        if Path(tokenizer_source(read)).is_dir():
            yield read


def _tokenizer_keys(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The saved `model` keys that concern the tokenizer. All other keys are dropped, including keys that name code."""
    model = config.get("model")
    saved = model if isinstance(model, dict) else {}
    return {key: saved[key] for key in ("path", "tokenizer_path", "chat_template") if key in saved}


def _why_none(name: str, models: Sequence[ModelConfig], config: Mapping[str, JsonValue]) -> str:
    if models:
        return f"'{models[-1].path}' contains none"
    keys = _tokenizer_keys(config)
    path = keys.get("tokenizer_path") or keys.get("path")
    return f"'{name}' used '{path}', which is not a local folder" if path else f"'{name}' saved no tokenizer name"
