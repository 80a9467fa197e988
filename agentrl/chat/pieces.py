"""Text of single tokens, for display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST_BYTES = 4  # a UTF-8 character has at most four bytes
_PART = "\ufffd"


def id_pieces(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token. If a character has several tokens, its text belongs to the last of them."""
    # some decoders strip the space at the start of a text, so an added token precedes each piece
    before = [next(iter(tokenizer.get_added_vocab().values()), tokenizer.eos_token_id)]
    before = [token for token in before if token is not None]
    num_before = len(_decode(tokenizer, before))
    pieces: list[str] = []
    waiting: list[int] = []
    for token_id in token_ids:
        waiting.append(token_id)
        text = _decode(tokenizer, [*before, *waiting])[num_before:]
        if text.endswith(_PART) and len(waiting) < _MOST_BYTES:
            pieces.append("")
            continue
        pieces.append(text)
        waiting = []
    if waiting:
        pieces[-1] = _decode(tokenizer, [*before, *waiting])[num_before:]
    return pieces


def _decode(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    return str(tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
