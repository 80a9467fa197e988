"""Token ids as text, each by itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from agentrl.errors import ConfigError
from agentrl.store.schema import CONFIG, VOCABULARY

TOKENIZER_FILE = "tokenizer.json"

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4
"""Bytes, and so tokens, of one character in UTF-8."""


class TokenTexts:
    """The text of tokens; None where no tokenizer is known.

    Attributes:
        note: what a reader must know of it, if anything.
    """

    def __init__(self, tokenizer: Tokenizer | None, note: str = "") -> None:
        self._tokenizer = tokenizer
        self.note = note

    def texts(self, token_ids: Sequence[int]) -> list[str] | None:
        """One text a token. A character that several tokens share stands at the last of them; the others are empty."""
        return None if self._tokenizer is None else list(self._split(self._tokenizer, list(token_ids)))

    def _split(self, tokenizer: Tokenizer, token_ids: list[int]) -> Iterator[str]:
        start = 0
        while start < len(token_ids):
            length = self._length(tokenizer, token_ids[start : start + _LONGEST_CHARACTER])
            yield from [""] * (length - 1)
            yield _text(tokenizer, token_ids[start : start + length])
            start += length

    def _length(self, tokenizer: Tokenizer, token_ids: list[int]) -> int:
        """How many of these tokens make whole characters; 1 where none do."""
        lengths = range(1, len(token_ids) + 1)
        return next((length for length in lengths if _BROKEN not in _text(tokenizer, token_ids[:length])), 1)


def _text(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    text = str(tokenizer.decode(token_ids, skip_special_tokens=False))
    piece = tokenizer.id_to_token(token_ids[0]) or ""
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text  # decoders strip a first space


def open_tokens(folder: Path, provenance: Mapping[str, str], override: str | None) -> TokenTexts:
    """The texts of the tokens of a run: by `override`, else its latest checkpoint, else the model it began with.

    Only vocabularies are read: no code of a model's or a tokenizer's is run.

    Raises:
        ConfigError: what is to be read is no tokenizer.
    """
    file = tokenizer_file(override) if override else _own(folder, provenance)
    if file is None:
        return TokenTexts(None, "The run has no tokenizer: tokens are shown as ids. Say --tokenizer FOLDER.")
    tokenizer = _load(file)
    made_with = provenance.get(VOCABULARY)
    if made_with is None or made_with == vocabulary_sha256(tokenizer):
        return TokenTexts(tokenizer)
    note = f"The rollouts were made with another tokenizer than that in {file.parent}"
    return TokenTexts(tokenizer, f"{note}.") if override else TokenTexts(None, f"{note}: tokens are shown as ids.")


def tokenizer_file(name: str) -> Path:
    """The vocabulary in a folder.

    Raises:
        ConfigError: there is none.
    """
    path = Path(name)
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"'--tokenizer {name}': there is no file '{file}'")
    return file


def vocabulary_sha256(tokenizer: Tokenizer) -> str:
    """As `trainer.provenance` writes it."""
    return hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()


def _load(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ConfigError(f"'{file}' is no tokenizer: {' '.join(str(error).split())}") from None


def _own(folder: Path, provenance: Mapping[str, str]) -> Path | None:
    config = json.loads(provenance.get(CONFIG, "{}"))
    model = config.get("model") if isinstance(config, dict) else None
    path = model.get("path") if isinstance(model, dict) else None
    folders = [folder / "checkpoints/latest", *([Path(path)] if isinstance(path, str) else [])]
    return next((file for each in folders if (file := each / TOKENIZER_FILE).is_file()), None)
