"""The tokenizer that saved rollouts were made with, held against the hashes they were written with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.loading import load_tokenizer
from agentrl.trainer.checkpoint import CHECKPOINTS
from agentrl.trainer.provenance import TEMPLATE, VOCABULARY, hashes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORDS = {VOCABULARY: f"vocabulary ({VOCABULARY})", TEMPLATE: f"chat template ({TEMPLATE})"}


@dataclass(frozen=True, slots=True)
class KeptTokenizer:
    """A tokenizer, and what is to be said of it; nothing where it is the one that was used."""

    tokenizer: PreTrainedTokenizerBase
    note: str


def load_kept_tokenizer(
    name: str,
    folder: Path | None,
    config: Mapping[str, JsonValue],
    provenance: Sequence[Mapping[str, str]],
    override: str | None,
) -> KeptTokenizer:
    """`override`, else that of the run's latest checkpoint, else that of the model the run began with.

    Code that ships with a tokenizer is never run, whatever the run's configuration says.

    Args:
        folder, config: of the run, as far as they are known.
        provenance: of each file of rollouts.

    Raises:
        ConfigError: there is none, or one that differs from what the rollouts were made with and was not asked for.
    """
    models = [ModelConfig(path=override)] if override else list(_own(name, folder, config))
    found = ((model, tokenizer) for model in models if (tokenizer := load_tokenizer(model)) is not None)
    model, tokenizer = next(found, (None, None))
    if model is None or tokenizer is None:
        where = f"there is none in '{models[-1].path}'" if models else f"'{name}' does not say which it was made with"
        raise ConfigError(f"no tokenizer: {where}: say --tokenizer FOLDER")
    used = model.tokenizer_path or model.path
    changed = _changed(tokenizer, provenance)
    if changed and not override:
        raise ConfigError(
            f"'{name}': the {' and the '.join(changed)} of the tokenizer in '{used}' changed since the rollouts were"
            " made: say --tokenizer FOLDER"
        )
    if changed:
        return KeptTokenizer(tokenizer, f"the {' and the '.join(changed)} of '{used}' are not the rollouts' own")
    known = any(VOCABULARY in kept for kept in provenance)
    return KeptTokenizer(tokenizer, "" if known else f"whether '{used}' made these rollouts is not known")


def _changed(tokenizer: PreTrainedTokenizerBase, provenance: Sequence[Mapping[str, str]]) -> list[str]:
    """Which parts are not those that every file was written with."""
    found = hashes(tokenizer)
    return [
        word for part, word in _WORDS.items() if any(kept.get(part, found[part]) != found[part] for kept in provenance)
    ]


def _own(name: str, folder: Path | None, config: Mapping[str, JsonValue]) -> Iterator[ModelConfig]:
    latest = folder / CHECKPOINTS / "latest" if folder else None
    if latest and latest.is_dir():
        yield ModelConfig(path=str(latest))
    kept = config.get("model")
    said = kept if isinstance(kept, dict) else {}
    # what the run said of other things, code among it, has no part in this
    if named := {key: said[key] for key in ("path", "tokenizer_path", "chat_template") if key in said}:
        try:
            yield ModelConfig.model_validate(named)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"'{name}': what was kept of its model cannot be read: {reason}") from None
