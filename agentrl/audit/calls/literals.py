"""Python literals and calls in a model's text, read with a stack: `name(a="text", b=[1, None])`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.audit.calls.json_values import after_blanks
from agentrl.audit.reading.run_info import Json

_MAX_LEVELS = 100
_TOKEN = re.compile(r"""\s*(?:([\[({\])},:])|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|([\w.+-]+))""", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CALL = re.compile(r"\s*((?!\d)\w[\w.-]*)\s*\(")
_ARGUMENT = re.compile(r"\s*((?!\d)\w+)\s*=(?!=)")
_AFTER_ARGUMENT = re.compile(r"\s*([,)])")
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\({_PAIR}|u[0-9a-fA-F]{{4}}|U[0-9a-fA-F]{{8}}|x[0-9a-fA-F]{{2}}|[0-7]{{1,3}}|.)", re.DOTALL)
_CONTROL: Mapping[str, str] = dict(zip("abfnrtv\\'\"\n", [*"\a\b\f\n\r\t\v\\'\"", ""], strict=True))


class NotLiteralError(Exception):
    """Text that is not a literal, or not a call."""


@dataclass(slots=True)
class _Open:
    """A list, tuple or dictionary that is not closed yet.

    Attributes:
        items: its values; for a dictionary, alternating keys and values.
        ready: whether a value may come next, because a bracket, a comma or a colon was read.
        num_commas: number of commas between and after its values.
    """

    bracket: str
    items: list[Json] = field(default_factory=list)
    ready: bool = True
    num_commas: int = 0

    @property
    def at_key(self) -> bool:
        return self.bracket == "{" and len(self.items) % 2 == 0

    def add(self, value: Json, *, text: bool) -> None:
        if not self.ready or (self.at_key and not text):
            raise NotLiteralError
        self.items.append(value)
        self.ready = False

    def separate(self, mark: str) -> None:
        after_key = self.bracket == "{" and len(self.items) % 2 == 1
        if self.ready or after_key != (mark == ":"):
            raise NotLiteralError
        self.ready = True
        self.num_commas += mark == ","

    def value(self, mark: str) -> Json:
        """Return the complete list, tuple or dictionary, which the bracket `mark` closes."""
        after_key = self.bracket == "{" and len(self.items) % 2 == 1
        if _CLOSING[self.bracket] != mark or after_key:
            raise NotLiteralError
        if self.bracket == "{":
            return dict(zip(self.items[::2], self.items[1::2], strict=True))
        alone = self.bracket == "(" and len(self.items) == 1 and not self.num_commas
        return self.items[0] if alone else self.items


def literal_at(text: str, position: int) -> tuple[Json, int]:
    """Skip whitespace; return the literal at `position` and the end of the literal.

    Constants may be written as in JSON. A tuple becomes a list. Keys of dictionaries are strings.

    Raises:
        NotLiteralError: there is no literal.
    """
    levels = [_Open("(")]  # not a bracket of the text: this level collects the literal itself
    while levels[0].ready:
        token = _TOKEN.match(text, position)
        if token is None:
            raise NotLiteralError
        position = token.end()
        _take(levels, token)
    return levels[0].items[0], position


def _take(levels: list[_Open], token: re.Match[str]) -> None:
    mark, string, word = token.groups()
    if mark not in (*_CLOSING.values(), ",", ":") and len(levels) > _MAX_LEVELS + 1:
        raise NotLiteralError
    if string is not None:
        levels[-1].add(_unescaped(string[1:-1]), text=True)
    elif word is not None:
        levels[-1].add(_constant(word), text=False)
    elif mark in _CLOSING:
        levels.append(_Open(mark))
    elif mark in ",:":
        levels[-1].separate(mark)
    elif len(levels) > 1:
        value = levels.pop().value(mark)
        levels[-1].add(value, text=False)
    else:
        raise NotLiteralError


def _constant(word: str) -> Json:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if not _NUMBER.fullmatch(word):
        raise NotLiteralError
    try:
        return int(word) if word.strip("+-").isdecimal() else float(word)
    except ValueError:  # a number with too many digits
        raise NotLiteralError from None


def _unescaped(text: str) -> str:
    """The text of a string. Unknown escapes stay as they are written; two `\\u` escapes may form one character."""
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    code: str = found[1]
    if code in _CONTROL:
        return _CONTROL[code]
    if "\\" in code:
        pair: str = json.loads(f'"{found[0]}"')
        return pair
    base = 8 if code[0] in "01234567" else 16 if len(code) > 1 else 0
    number = int(code.lstrip("uUx"), base) if base else 0x110000
    return chr(number) if number < 0x110000 else found[0]


def call_at(text: str, position: int) -> tuple[str, Mapping[str, Json], int]:
    """Return name, arguments and end of the call at `position`.

    Raises:
        NotLiteralError: there is no call, or an argument has no name, is written twice, or is not a literal.
    """
    found = _CALL.match(text, position)
    if found is None:
        raise NotLiteralError
    arguments, position = dict[str, Json](), found.end()
    while not text.startswith(")", start := after_blanks(text, position)):
        key = _ARGUMENT.match(text, start)
        if key is None or key[1] in arguments:
            raise NotLiteralError
        arguments[key[1]], position = literal_at(text, key.end())
        following = _AFTER_ARGUMENT.match(text, position)
        if following is None:
            raise NotLiteralError
        position = following.end()
        if following[1] == ")":
            return found[1], arguments, position
    return found[1], arguments, start + 1
