"""Parsing of Python literals and calls written by a model; nothing is evaluated.

Python's own parser is not used, because its time is not linear for some texts, and deep nesting can end the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import JsonValue

from agentrl.security.json_depth import MAX_DEPTH


class BadPythonError(Exception):
    """Raised for text that is not a literal; the message contains the mistake and its position."""


_BLANKS = re.compile(r"\s*")
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])", re.ASCII)
_WORD = re.compile(r"[^\W\d]\w*")
_WORDS: Mapping[str, JsonValue] = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
"""Constants of Python and of JSON. Templates write JSON's constants in nested values."""
_ESCAPE = re.compile(
    r"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}"
    r"|x[0-9a-fA-F]{2}|[0-7]{1,3}|.)",
    re.DOTALL,
)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_LETTERS |= {quoted: quoted for quoted in ("\\", "'", '"')}


def skip_blanks(text: str, position: int) -> int:
    """Return the position of the first character that is not whitespace."""
    blanks = _BLANKS.match(text, position)
    return blanks.end() if blanks else position


def read_literal(text: str, position: int, depth: int = 0) -> tuple[JsonValue, int]:
    """Return the string, number, constant, list, tuple or dictionary at `position`, and its end.

    Raises:
        BadPythonError: there is no literal.
    """
    position = skip_blanks(text, position)
    if depth > MAX_DEPTH:
        raise BadPythonError("it is nested too deeply")
    start = text[position : position + 1]
    if start in ("'", '"'):
        return _string(text, position)
    if start in ("[", "("):
        return _sequence(text, position, depth)
    if start == "{":
        return _dictionary(text, position, depth)
    if word := _WORD.match(text, position):
        if word[0] in _WORDS:
            return _WORDS[word[0]], word.end()
        raise BadPythonError(f"{word[0][:20]!r} is not a literal")
    return _number(text, position)


def near(text: str, position: int) -> str:
    """Describe the text at a position, for errors."""
    following = text[position : position + 20]
    return f"near {following!r}" if following else "where it ends"


def expect(text: str, position: int, *choices: str) -> tuple[str, int]:
    """Return the next character after whitespace, which must be one of `choices`, and the position after it.

    Raises:
        BadPythonError: the next character is not one of `choices`.
    """
    position = skip_blanks(text, position)
    found = text[position : position + 1]
    if found not in choices or not found:
        raise BadPythonError(f"expected {' or '.join(map(repr, choices))} {near(text, position)}")
    return found, position + 1


def _string(text: str, position: int) -> tuple[str, int]:
    found = _STRING.match(text, position)
    if found is None:
        raise BadPythonError(f"a string is not closed, {near(text, position)}")
    raw = found[1] if found[1] is not None else found[2]
    return _ESCAPE.sub(_character, raw) if "\\" in raw else raw, found.end()


def _character(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 5 and code[0] == "u":  # a surrogate pair, as in JSON
        return bytes.fromhex(code[1:5] + code[7:]).decode("utf-16-be")
    if len(code) > 1 and code[0] in "uUx":
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else match[0]
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _LETTERS.get(code, match[0])


def _number(text: str, position: int) -> tuple[JsonValue, int]:
    found = _NUMBER.match(text, position)
    if found is None:
        raise BadPythonError(f"expected a value {near(text, position)}")
    digits = found[0]
    try:
        return (int(digits) if digits.lstrip("+-").isdigit() else float(digits)), found.end()
    except ValueError:  # Python limits the digits, because reading a long integer needs quadratic time
        raise BadPythonError("a number in it is too long") from None


def _sequence(text: str, position: int, depth: int) -> tuple[JsonValue, int]:
    close = {"[": "]", "(": ")"}[text[position]]
    items, position = list[JsonValue](), skip_blanks(text, position + 1)
    while text[position : position + 1] != close:
        item, position = read_literal(text, position, depth + 1)
        items.append(item)
        found, position = expect(text, position, ",", close)
        if found == close:
            return item if close == ")" and len(items) == 1 else items, position  # (value) is no tuple
        position = skip_blanks(text, position)
    return items, position + 1


def _dictionary(text: str, position: int, depth: int) -> tuple[dict[str, JsonValue], int]:
    items, position = dict[str, JsonValue](), skip_blanks(text, position + 1)
    while text[position : position + 1] != "}":
        if text[position : position + 1] not in ("'", '"'):
            raise BadPythonError(f"expected a key that is a string {near(text, position)}")
        key, position = _string(text, position)
        _, position = expect(text, position, ":")
        items[key], position = read_literal(text, position, depth + 1)
        found, position = expect(text, position, ",", "}")
        if found == "}":
            return items, position
        position = skip_blanks(text, position)
    return items, position + 1
