"""A text cut where its tokens begin."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """`text` as a piece for each of its tokens; joined, they are the text.

    A character that several tokens share is in the last one's piece. A slow tokenizer gives characters.
    """
    if not tokenizer.is_fast:
        return list(text)
    valid = text.encode("utf-8", "replace").decode()  # a lone surrogate is no text; a question mark is as long
    encoded = tokenizer(valid, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    starts = accumulate((start for start, _ in encoded["offset_mapping"]), max)
    return [text[start:end] for start, end in pairwise([0, *list(starts)[1:], len(text)])]
