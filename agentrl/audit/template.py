"""Tokenizer and chat template: decode tokens, tokenize text, and render the text around the model's turns."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.audit.reading.run_info import Json
from agentrl.audit.turn_ends import FORMS, MARKED, CallForm, Conversation, TurnEnds, marked, turn_ends

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_TOOLS: Sequence[Json] = [{"type": "function", "function": {"name": "f", "description": "f", "parameters": {}}}]
_DATE = "2026-01-01"  # date for templates that read the clock; the variable `template_date` overrides it
_MAX_CACHED = 100_000


class TemplateRefusesError(Exception):
    """The chat template cannot render a conversation; the message is the reason."""


@dataclass(frozen=True)
class TemplateOracle:
    """A tokenizer, and variables for its chat template.

    Attributes:
        num_model_ids: number of ids that the model can sample, often larger than the number of tokens; 0 if unknown.
    """

    tokenizer: PreTrainedTokenizerBase
    variables: Mapping[str, Json]
    num_model_ids: int = 0

    def with_variables(self, variables: Mapping[str, Json]) -> TemplateOracle:
        """Return the same tokenizer with further variables, such as those of a row."""
        return replace(self, variables={**self.variables, **variables}) if variables else self

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the vocabulary and of the chat template, each as JSON with sorted keys."""
        parts = {"tokenizer": self.tokenizer.get_vocab(), "template": self.tokenizer.chat_template}
        texts = {name: json.dumps(part, sort_keys=True).encode() for name, part in parts.items()}
        return {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}

    @cached_property
    def num_ids(self) -> int:
        """One more than the largest id of the vocabulary."""
        return 1 + max(map(int, self.tokenizer.get_vocab().values()))

    def can_read(self, ids: Sequence[int]) -> bool:
        """Whether all ids are in range. Some ids that the model can sample belong to no token and have no text."""
        return not ids or (min(ids) >= 0 and max(ids) < max(self.num_ids, self.num_model_ids))

    @cached_property
    def added(self) -> dict[str, int]:
        """Text -> id of the added tokens, which the tokenizer matches first."""
        return dict(self.tokenizer.get_added_vocab())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens."""
        listed = self.tokenizer.added_tokens_decoder.items()
        return frozenset([*self.tokenizer.all_special_ids, *(number for number, token in listed if token.special)])

    @cached_property
    def spells_added(self) -> re.Pattern[str]:
        """Pattern that matches the text of any added token."""
        return re.compile("|".join(map(re.escape, sorted(self.added, key=len, reverse=True))) or "(?!)")

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of tokens that end a model turn; the first one ends a turn without calls. Default: the EOS token."""
        eos: int | None = self.tokenizer.eos_token_id
        found = tuple(self.added[text] for text in self.ends.sampled if text in self.added)
        return found or (() if eos is None else (eos,))

    @cached_property
    def ends(self) -> TurnEnds:
        """Where model turns end in the template."""
        return turn_ends(self._render_trial, self.spells_added, self._form, TemplateRefusesError)

    def _render_trial(self, messages: Conversation, prompt: bool) -> str:
        return self.render(messages, _TOOLS if any("tool_calls" in m for m in messages) else [], prompt=prompt)

    @cached_property
    def _form(self) -> CallForm:
        """The first form of calls in `FORMS` that the template accepts."""
        trial = [message for message in TRIAL[:5] if message["role"] != "system"]
        for form in FORMS[:-1]:
            try:
                _cut(self.render(marked(trial, 1, form), _TOOLS, prompt=True), 1)
            except TemplateRefusesError:
                continue
            return form
        return FORMS[-1]

    @cached_property
    def opened(self) -> str:
        """The end of the generation prompt, if it opens the model's thoughts (such as `<think>`); else ""."""
        user = [{"role": "user", "content": "a"}]
        try:
            without, whole = (self.render(user, [], prompt=prompt) for prompt in (False, True))
        except TemplateRefusesError:
            return ""
        begun = re.search("<think>(?!.*</think>).*$", whole.removeprefix(without), re.DOTALL)
        return begun[0] if begun else ""

    def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Decode each sequence. Special tokens are kept, except the end token of the turn."""
        cut = [ids[:-1] if ids and ids[-1] in self.end_ids else ids for ids in sequences]
        decoded = self.tokenizer.batch_decode(cut, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [str(text) for text in decoded]

    def tokens(self, text: str) -> list[int]:
        """Tokenize text; the text of an added token becomes that token."""
        if text not in self._cached_tokens:
            if len(self._cached_tokens) >= _MAX_CACHED:
                self._cached_tokens.clear()
            valid = text if text.isascii() else text.encode("utf-8", "replace").decode()
            self._cached_tokens[text] = self.tokenizer.encode(valid, add_special_tokens=False)
        return self._cached_tokens[text]

    @cached_property
    def _cached_tokens(self) -> dict[str, list[int]]:
        return {}

    def render(self, messages: Conversation, tools: Sequence[Json], *, prompt: bool) -> str:
        """Render the conversation as text.

        Raises:
            TemplateRefusesError: the template raised an error.
        """
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=list(tools) or None,
                    tokenize=False,
                    add_generation_prompt=prompt,
                    **{**self.variables, "strftime_now": self._date.strftime},
                )
            )
        except Exception as error:  # a template can raise any error
            raise TemplateRefusesError(" ".join(str(error).split()) or type(error).__name__) from error

    @cached_property
    def _date(self) -> datetime:
        try:
            return datetime.strptime(str(self.variables.get("template_date", _DATE)), "%Y-%m-%d")
        except ValueError as error:
            raise TemplateRefusesError(f"template_date: {error}") from None

    def pieces(self, messages: Conversation, num_opening: int, tools: Sequence[Json]) -> list[str]:
        """Return the text pieces before, between and after the model's turns.

        The turns are replaced by marks. The conversation is rendered once and cut at the marks. Some templates
        write a turn differently if messages follow it (they drop thoughts). With such templates, the conversation
        is rendered once for each turn, up to this turn.

        Raises:
            TemplateRefusesError: the template raised an error, or repeats, drops or reorders the turns.
        """
        shown = marked(messages, num_opening, self._form)
        num_turns = sum(message["role"] == "assistant" for message in messages[num_opening:])
        if self._renders_at_once(tools):
            pieces = self._at_once(shown, num_turns, tools)
        else:
            pieces = self._turn_by_turn(shown, num_opening, tools)
        called = ["tool_calls" in message for message in shown[num_opening:] if message["role"] == "assistant"]
        return [
            pieces[0],
            *(self._after_calls(piece) if calls else piece for piece, calls in zip(pieces[1:], called, strict=True)),
        ]

    def _after_calls(self, piece: str) -> str:
        """Drop the rest of the last call from the piece after a turn, so that the piece starts with the end token."""
        return piece[max(0, piece.find(self.ends.calls or "")) :]

    def _at_once(self, shown: Conversation, num_turns: int, tools: Sequence[Json]) -> list[str]:
        return _cut(self.render(shown, tools, prompt=shown[-1]["role"] != "assistant"), num_turns)

    def _turn_by_turn(self, shown: Conversation, num_opening: int, tools: Sequence[Json]) -> list[str]:
        turns = [i for i, message in enumerate(shown) if i >= num_opening and message["role"] == "assistant"]
        ends = turns if turns and turns[-1] == len(shown) - 1 else [*turns, len(shown)]
        texts = [self.render(shown[:end], tools, prompt=True) for end in ends]
        pieces = [_cut(text, number)[-1] for number, text in enumerate(texts)]
        return pieces if len(pieces) > len(turns) else [*pieces, ""]

    def _renders_at_once(self, tools: Sequence[Json]) -> bool:
        """Whether `_at_once` and `_turn_by_turn` agree on test conversations, ignoring text after the last turn."""
        key = bool(tools)
        if key not in self._at_once_agrees:
            try:
                agree = [
                    self._at_once(shown, 5, tools)[:-1] == self._turn_by_turn(shown, 2, tools)[:-1]
                    for trial in (TRIAL, [m for m in TRIAL if m["role"] != "tool"])
                    for shown in [marked(trial, 2, self._form)]
                ]
                self._at_once_agrees[key] = all(agree)
            except TemplateRefusesError:
                self._at_once_agrees[key] = False
        return self._at_once_agrees[key]

    @cached_property
    def _at_once_agrees(self) -> dict[bool, bool]:
        return {}

    def differs(self, ids: Sequence[int], text: str, neutral: str, control: frozenset[int] | None = None) -> str:
        """Return how the tokens `ids` differ from `text`; "" if they agree.

        Use this method if message contents in `text` look like added tokens: tokenizing `text` would make added tokens
        from these contents. So the decoded `ids` are compared with `text`, and the control tokens (special tokens, and
        added tokens that the template writes) are counted.

        Args:
            neutral: `text` with other contents, which do not look like added tokens.
            control: the control tokens; None: special tokens, and added tokens in `neutral`.
        """
        written = self.tokens(neutral)
        control = control or self.special_ids | (set(written) & set(self.added.values()))
        if Counter(i for i in ids if i in control) != Counter(i for i in written if i in control):
            return "control tokens that the template does not write"
        (found,) = self.tokenizer.batch_decode(
            [list(ids)], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return "" if found == text.encode("utf-8", "replace").decode() else f"the text {found!r}"


TRIAL: Conversation = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "tool", "name": "f", "tool_call_id": "c00000000", "content": "c"},
    {"role": "tool", "name": "f", "tool_call_id": "c00000001", "content": "d"},
    {"role": "assistant", "content": "e"},
    {"role": "tool", "name": "f", "tool_call_id": "c00000002", "content": "g"},
    {"role": "assistant", "content": "h"},
    {"role": "user", "content": "i"},
    {"role": "assistant", "content": "j"},
    {"role": "user", "content": "k"},
    {"role": "assistant", "content": "l"},
]


def _cut(text: str, num_marks: int) -> list[str]:
    """Split the text at the marks.

    Raises:
        TemplateRefusesError: the marks do not occur once each, in order.
    """
    parts = MARKED.split(text)
    if parts[1::2] != [f"{number:05d}" for number in range(num_marks)]:
        raise TemplateRefusesError("it repeats, drops or reorders model turns")
    return parts[::2]


MAX_TEMPLATE_BYTES = 1 << 20


def load_oracle(
    folders: Sequence[str], template: str | None, variables: Mapping[str, Json], hashes: Mapping[str, str]
) -> tuple[TemplateOracle | None, str]:
    """Load the first tokenizer in `folders` whose hashes match `hashes`; if none matches, the first that can be loaded.

    If no tokenizer can be loaded, return None and the reason. Nothing is downloaded, and code that ships with a
    tokenizer is never run.

    Args:
        template: a Jinja file, in place of the tokenizer's own template.
    """
    from transformers import AutoTokenizer

    found, why = list[TemplateOracle](), "the tokenizer of the run is unknown"
    for folder in folders:
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            if template:
                tokenizer.chat_template = _template_text(Path(template))
        except Exception:  # a missing, damaged or unrelated folder raises many kinds of errors
            why = f"cannot load a tokenizer from '{folder}'"
            continue
        oracle = TemplateOracle(tokenizer, variables, num_model_ids(folders))
        if hashes.items() <= oracle.hashes().items():
            return oracle, ""
        found.append(oracle)
    return (found[0], "") if found else (None, why)


def _template_text(path: Path) -> str:
    """Read a template file. Only regular files of limited size are read, because a run may name any path."""
    if not path.is_file() or path.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ValueError(f"'{path}' is not a chat template")
    return path.read_text(encoding="utf-8")


def num_model_ids(folders: Sequence[str]) -> int:
    """Vocabulary size in the first readable model configuration; 0 if there is none."""
    for folder in folders:
        path = Path(folder) / "config.json"
        if path.is_file():
            try:
                config = json.loads(path.read_text(encoding="utf-8"))
                return int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 0)
            except (OSError, ValueError, TypeError, AttributeError):  # damaged or unexpected content
                continue
    return 0
