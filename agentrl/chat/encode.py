"""From template text to token ids, with a way to keep message text from becoming control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from tokenizers import AddedToken, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


V = TypeVar("V")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class Frame:
    """The constant ends of a family of texts, encoded once.

    Both ends are cut at an added token, which the tokenizer finds before anything else: what stands on one side of it
    is encoded the same whatever stands on the other. The two tokens themselves belong to the middle, `edge_ids`.
    """

    num_control: int  # in the middle
    num_before: int = 0
    before_ids: Sequence[int] = ()
    num_after: int = 0
    after_ids: Sequence[int] = ()
    edge_ids: tuple[int, int] | None = None


class TextEncoder:
    """Encodes text as `tokenizer.encode(text, add_special_tokens=False)` does, several times faster.

    Text of a message must not end a turn or begin one, so where it spells a control token, `hide` it before it is
    rendered and call `encode_hidden` afterwards: it is then encoded as the ordinary characters it consists of.

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
        # random, so that no text contains one on purpose; only letters and digits, so that templates let them pass
        nonce = uuid4().hex
        self._stand_ins = {text: f"zq{nonce}n{index}zq" for index, text in enumerate(self._texts)}
        self._stand_in_pattern = re.compile(f"zq{nonce}n(\\d+)zq")
        self._aliases = {text: f"\ue000{nonce}a{index}\ue000" for index, text in enumerate(self._texts)}

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, in which the text of a control token is that token."""
        text = _without_surrogates(text)
        if self._backend is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        return _encode(self._backend, text)

    def decode(self, token_ids: list[int]) -> str:
        """The text of tokens, special ones included, as `tokenizer.decode` gives it."""
        if self._backend is not None and self._decodes_plainly:
            text: str = self._backend.decode(token_ids, skip_special_tokens=False)
            return text
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @cached_property
    def _decodes_plainly(self) -> bool:
        """Whether the tokenizer's class leaves decoding to the fast tokenizer, and only copies ids and text around."""
        methods = [getattr(type(self._tokenizer), name) for name in ("decode", "_decode")]
        return all(method.__module__.startswith("transformers.tokenization_utils") for method in methods)

    def frame(self, before: str, rest: Sequence[str]) -> Frame:
        """The frame of texts that begin with `before` and go on with a content before each of `rest`."""
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
        """As `encode`, of a text in `frame`; None where contents put control tokens into it or reach into its ends."""
        ids = self.encode(text[frame.num_before : len(text) - frame.num_after])
        if self._num_control(ids) != frame.num_control or (frame.edge_ids and (ids[0], ids[-1]) != frame.edge_ids):
            return None
        return [*frame.before_ids, *ids, *frame.after_ids]

    def _num_control(self, ids: Sequence[int]) -> int:
        return sum(map(self._control_ids.__contains__, ids))

    def hide(self, value: V) -> V:
        """Text, or any nesting of lists and dictionaries of it, with stand-ins where it spells a control token."""
        if isinstance(value, str):
            return self._pattern.sub(lambda match: self._stand_ins[match[0]], value)  # type: ignore[return-value]
        if isinstance(value, list):
            return [self.hide(item) for item in value]  # type: ignore[return-value]
        if isinstance(value, dict):
            return {key: self.hide(item) for key, item in value.items()}  # type: ignore[return-value]
        return value  # the ignores: mypy cannot see that a str maps to a str, a list to a list, a dict to a dict

    def encode_hidden(self, text: str) -> list[int]:
        """Token ids of `text`, in which stand-ins become the ordinary characters of what they stand for."""
        if self._backend is None:
            # a slow tokenizer has no second way to read a control token: an invisible space breaks its text up
            return self.encode(self._reveal(text, lambda control: f"{control[0]}\u200b{control[1:]}"))
        backend, original_ids = self._renamed
        aliased = self._pattern.sub(lambda match: self._aliases[match[0]], _without_surrogates(text))
        ids = _encode(backend, self._reveal(aliased, str))
        return [original_ids.get(token, token) for token in ids]

    def _reveal(self, text: str, spell: Callable[[str], str]) -> str:
        return self._stand_in_pattern.sub(lambda match: spell(self._texts[int(match[1])]), text)

    @cached_property
    def _renamed(self) -> tuple[Tokenizer, dict[int, int]]:
        """The same tokenizer with its control tokens under their aliases, and how its ids map back."""
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
        # control tokens are often in the model's own vocabulary too, where ordinary text could reach them
        if isinstance(vocab, dict):
            return {self._aliases.get(piece, piece): token_id for piece, token_id in vocab.items()}
        return [[self._aliases.get(str(piece), piece), score] for piece, score in vocab]


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds the longest of `texts` at the leftmost place, as tokenizers do."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def _encode(backend: Tokenizer, text: str) -> list[int]:
    """Token ids of a text, without the places in it that they come from, which take a third of the time."""
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _private_copy(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """The fast tokenizer, apart from the shared one that other calls switch truncation and padding on in."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _without_surrogates(text: str) -> str:
    # a lone surrogate (a tool's undecodable byte) is no text, and the fast tokenizer refuses it
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
