"""Decode token ids to text, token by token."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from agentrl.errors import ConfigError
from agentrl.models.folder import TOKENIZER_FILE, tokenizer_file
from agentrl.store.schema import CONFIG, VOCABULARY
from agentrl.store.text import read_json

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4
"""Maximum number of bytes of a UTF-8 character. So a character consists of at most this number of tokens."""


class TokenTexts:
    """Decoder of token ids; its texts are None if no tokenizer is available.

    Attributes:
        note: a note for the user about the tokenizer; may be empty.
    """

    def __init__(self, tokenizer: Tokenizer | None, note: str = "") -> None:
        self._tokenizer = tokenizer
        self.note = note

    def texts(self, token_ids: Sequence[int]) -> list[str] | None:
        """One text per token. If several tokens form one character, only the last token has a text: this character."""
        return None if self._tokenizer is None else list(self._split(self._tokenizer, list(token_ids)))

    def _split(self, tokenizer: Tokenizer, token_ids: list[int]) -> Iterator[str]:
        start = 0
        while start < len(token_ids):
            length = self._length(tokenizer, token_ids[start : start + _LONGEST_CHARACTER])
            yield from [""] * (length - 1)
            yield _text(tokenizer, token_ids[start : start + length])
            start += length

    def _length(self, tokenizer: Tokenizer, token_ids: list[int]) -> int:
        """Smallest number of leading tokens that together form complete characters; 1 if there is no such number."""
        lengths = range(1, len(token_ids) + 1)
        return next((length for length in lengths if _BROKEN not in _text(tokenizer, token_ids[:length])), 1)


def _text(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    text = str(tokenizer.decode(token_ids, skip_special_tokens=False))
    piece = tokenizer.id_to_token(token_ids[0]) or ""
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text  # decoders strip a leading space


def open_tokens(folder: Path, provenance: Mapping[str, str], override: str | None) -> TokenTexts:
    """Open the tokenizer in `override` if it is given. Otherwise, open the run's tokenizer.

    The run's tokenizer is in the latest checkpoint or, if it has none, in the folder of the initial model. The run's
    tokenizer is not used if its vocabulary differs from the vocabulary of the rollouts. Only tokenizer files are read.
    Code of a model or tokenizer is never run.

    Raises:
        ConfigError: the file is not a tokenizer.
    """
    file = tokenizer_file(override) if override else _own(folder, provenance)
    if file is None:
        return TokenTexts(None, "The run has no tokenizer: tokens are shown as ids. Pass --tokenizer FOLDER.")
    tokenizer = _load(file)
    made_with = provenance.get(VOCABULARY)
    if made_with is None or made_with == vocabulary_sha256(tokenizer):
        return TokenTexts(tokenizer)
    note = f"The tokenizer in {file.parent} is not the one that the rollouts were made with"
    return TokenTexts(tokenizer, f"{note}.") if override else TokenTexts(None, f"{note}: tokens are shown as ids.")


def vocabulary_sha256(tokenizer: Tokenizer) -> str:
    """Hash of the vocabulary, as in `run_folder.provenance`."""
    return hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()


def _load(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError.keyless(f"'{file}' is not a tokenizer: {' '.join(str(error).split())}") from None


def _own(folder: Path, provenance: Mapping[str, str]) -> Path | None:
    try:
        config = read_json(provenance.get(CONFIG, "{}"))
    except ValueError:  # a damaged configuration must not prevent viewing the tokens
        config = {}
    model = config.get("model") if isinstance(config, dict) else None
    path = model.get("path") if isinstance(model, dict) else None
    folders = [folder / "checkpoints/latest", *([Path(path)] if isinstance(path, str) else [])]
    return next((file for each in folders if (file := each / TOKENIZER_FILE).is_file()), None)
