"""Text pieces, one per token."""

from __future__ import annotations

import pytest
from chat_families import NAMES, TOKENIZERS, contents, full_ids
from hypothesis import given
from hypothesis import strategies as st

from agentrl.chat.encode import token_pieces


@given(name=st.sampled_from(NAMES), text=st.one_of(contents, st.just("a<|im_end|>b<tool_call>c")))
def test_pieces_are_the_text_and_as_many_as_its_tokens(name, text):
    pieces = token_pieces(TOKENIZERS[name], text)
    assert "".join(pieces) == text
    assert len(pieces) == max(1, len(full_ids(name, text)))


def test_pieces_never_split_added_tokens_or_characters():
    pieces = token_pieces(TOKENIZERS["chatml"], "a<|im_end|>日")
    assert [piece for piece in pieces if piece] == ["a", "<|im_end|>", "日"]
    assert len(pieces) == 5  # the last character has three bytes, with one token each


@pytest.mark.parametrize("text", ["", "\ud800x"])
def test_pieces_join_to_the_text_for_unusual_text(text):
    assert "".join(token_pieces(TOKENIZERS["chatml"], text)) == text


def test_a_slow_tokenizer_gives_characters():
    class Slow:
        is_fast = False

    assert token_pieces(Slow(), "ab") == ["a", "b"]
