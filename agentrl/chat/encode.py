"""Encoding of template text to token ids, so that message text cannot become control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from tokenizers import AddedToken, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


V = TypeVar("V")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class Frame:
    """Constant start and end of similar texts, encoded once. The middle between them is encoded for each text.

    The middle begins and ends with an added token (`edge_ids`). The tokenizer splits text at added tokens first, so
    start, middle and end can be encoded separately. If `edge_ids` is None, the complete text is the middle.
    """

    num_control: int  # number of control tokens in the middle
    num_before: int = 0  # number of characters of the start
    before_ids: Sequence[int] = ()
    num_after: int = 0  # number of characters of the end
    after_ids: Sequence[int] = ()
    edge_ids: tuple[int, int] | None = None


class TextEncoder:
    """Encoder that returns the same ids as `tokenizer.encode(text, add_special_tokens=False)`, several times faster.

    Text in a message must not end or start a turn. If message text may contain the text of a control token, call `hide`
    before rendering and `encode_hidden` afterwards. Then such text is encoded as ordinary characters.

    Args:
        control: text -> id of the tokens that only the template may write.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, control: Mapping[str, int]) -> None:
        self._tokenizer = tokenizer
        self._backend = _private_copy(tokenizer)
        self._added_tokens = tokenizer.get_added_vocab()
        self._added = _any_of(self._added_tokens)
        self._control_ids = frozenset(control.values())
        self._texts = sorted(control, key=len, reverse=True)
        self._pattern = _any_of(control)
        # random, so that no text contains it; only letters and digits, so that no template changes it
        nonce = uuid4().hex
        self._stand_ins = {text: f"zq{nonce}n{index}zq" for index, text in enumerate(self._texts)}
        self._stand_in_pattern = re.compile(f"zq{nonce}n(\\d+)zq")
        self._aliases = {text: f"\ue000{nonce}a{index}\ue000" for index, text in enumerate(self._texts)}

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; the text of a control token becomes that token."""
        text = _without_surrogates(text)
        if self._backend is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        return _encode(self._backend, text)

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of tokens, special tokens included, like `tokenizer.decode`."""
        if self._backend is not None and self._decodes_plainly:
            text: str = self._backend.decode(token_ids, skip_special_tokens=False)
            return text
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @cached_property
    def _decodes_plainly(self) -> bool:
        """Whether the fast tokenizer can decode directly, because the tokenizer's class does not override decoding."""
        methods = [getattr(type(self._tokenizer), name) for name in ("decode", "_decode")]
        return all(method.__module__.startswith("transformers.tokenization_utils") for method in methods)

    def frame(self, before: str, rest: Sequence[str]) -> Frame:
        """Return the frame of all texts `before + content + rest[0] + content + rest[1] + ...`, with any contents."""
        sample = "x".join([before, *rest])
        cut = self._cut(before, rest[-1], sample) if rest else None
        if cut and self.encode_framed(sample, cut) == self.encode(sample):
            return cut
        return Frame(self._num_control(self.encode(sample)))

    def _cut(self, before: str, after: str, sample: str) -> Frame | None:
        first = max(self._added.finditer(before), key=re.Match.start, default=None)
        last = self._added.search(after)
        if not first or not last:
            return None
        num_after = len(after) - last.end()
        return Frame(
            num_control=self._num_control(self.encode(sample[first.start() : len(sample) - num_after])),
            num_before=first.start(),
            before_ids=self.encode(before[: first.end()])[:-1],
            num_after=num_after,
            after_ids=self.encode(after[last.start() :])[1:],
            edge_ids=(self._added_tokens[first[0]], self._added_tokens[last[0]]),
        )

    def encode_framed(self, text: str, frame: Frame) -> list[int] | None:
        """Encode a text of `frame`; return None if its contents contain control tokens or change the edge tokens."""
        ids = self.encode(text[frame.num_before : len(text) - frame.num_after])
        if self._num_control(ids) != frame.num_control or (frame.edge_ids and (ids[0], ids[-1]) != frame.edge_ids):
            return None
        return [*frame.before_ids, *ids, *frame.after_ids]

    def _num_control(self, ids: Sequence[int]) -> int:
        return sum(map(self._control_ids.__contains__, ids))

    def hide(self, value: V, only: Collection[str] | None = None) -> V:
        """Replace the text of control tokens by placeholders, in text or nested lists and dictionaries of text.

        Args:
            only: the control tokens to replace; None: all.
        """
        return self._hidden(value, self._pattern if only is None else _any_of(only))

    def _hidden(self, value: V, pattern: re.Pattern[str]) -> V:
        if isinstance(value, str):
            return pattern.sub(lambda match: self._stand_ins[match[0]], value)  # type: ignore[return-value]
        if isinstance(value, list):
            return [self._hidden(item, pattern) for item in value]  # type: ignore[return-value]
        if isinstance(value, dict):  # keys, too: a model chooses a call's argument names
            return {  # type: ignore[return-value]
                self._hidden(key, pattern): self._hidden(item, pattern) for key, item in value.items()
            }
        return value  # mypy does not know that the type is preserved, hence the ignores

    def encode_hidden(self, text: str) -> list[int]:
        """Return the token ids of `text`. Placeholders become the text of control tokens, encoded as ordinary text."""
        if self._backend is None:
            # in a slow tokenizer, control tokens cannot be renamed; so an invisible space splits their text
            return self.encode(self._reveal(text, lambda control: f"{control[0]}\u200b{control[1:]}"))
        backend, original_ids = self._renamed
        aliased = self._pattern.sub(lambda match: self._aliases[match[0]], _without_surrogates(text))
        ids = _encode(backend, self._reveal(aliased, str))
        return [original_ids.get(token, token) for token in ids]

    def _reveal(self, text: str, convert: Callable[[str], str]) -> str:
        return self._stand_in_pattern.sub(lambda match: convert(self._texts[int(match[1])]), text)

    @cached_property
    def _renamed(self) -> tuple[Tokenizer, dict[int, int]]:
        """Copy of the tokenizer with renamed control tokens, and the mapping from its token ids to the original ids."""
        assert self._backend is not None
        state = json.loads(self._backend.to_str())
        state.update(added_tokens=[], post_processor=None)
        state["model"]["vocab"] = self._rename(state["model"]["vocab"])
        renamed = Tokenizer.from_str(json.dumps(state))
        original_ids = {}
        for token_id, token in sorted(self._backend.get_added_tokens_decoder().items()):
            name = self._aliases.get(token.content, token.content)
            renamed.add_tokens([AddedToken(name, **{flag: getattr(token, flag) for flag in _FLAGS})])
            original_ids[renamed.token_to_id(name)] = token_id
        return renamed, original_ids

    def _rename(self, vocab: dict[str, int] | list[list[object]]) -> dict[str, int] | list[list[object]]:
        # control tokens are often also in the base vocabulary; if not renamed there, ordinary text could become them
        if isinstance(vocab, dict):
            return {self._aliases.get(piece, piece): token_id for piece, token_id in vocab.items()}
        return [[self._aliases.get(str(piece), piece), score] for piece, score in vocab]


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the leftmost of `texts`, and the longest at that position, as tokenizers do."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def _encode(backend: Tokenizer, text: str) -> list[int]:
    """Return the token ids of a text. Offsets are not computed, because they would take a third of the time."""
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _private_copy(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """Return a copy of the fast tokenizer, because other code may enable truncation and padding in the original."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _without_surrogates(text: str) -> str:
    # the fast tokenizer rejects a lone surrogate (an undecodable byte from a tool)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def token_pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Split `text` into one piece per token; the joined pieces are the text.

    A character that consists of several tokens is in the piece of the last token. With a slow tokenizer, the pieces are
    characters.
    """
    if not tokenizer.is_fast:
        return list(text)
    # a lone surrogate becomes one question mark, so `valid` and `text` have the same length
    valid = text.encode("utf-8", "replace").decode()
    encoded = tokenizer(valid, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    starts = accumulate((start for start, _ in encoded["offset_mapping"]), max)
    return [text[start:end] for start, end in pairwise([0, *list(starts)[1:], len(text)])]
