"""Parsing of Python calls with literal arguments: `name(argument="value", other=[1, None])`."""

from __future__ import annotations

import re

from pydantic import JsonValue

from agentrl.chat.parsers.python_text import BadPythonError, expect, near, read_literal, skip_blanks

NAME = re.compile(r"[^\W\d][\w.\-]*")
_KEY = re.compile(r"([^\W\d]\w*)\s*=(?!=)")


class BadCallError(BadPythonError):
    """Raised for a malformed call; `name` is the tool's name, or "" if the call has none."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def read_call(text: str, position: int) -> tuple[str, dict[str, JsonValue], int]:
    """Return name, arguments and end of the call at `position`, after whitespace.

    Raises:
        BadCallError: there is no call, or its arguments are not literals with names.
    """
    position = skip_blanks(text, position)
    if (name := NAME.match(text, position)) is None:
        raise BadCallError(f"expected the name of a tool {near(text, position)}", "")
    try:
        _, position = expect(text, name.end(), "(")
        arguments, position = _arguments(text, position)
    except BadPythonError as error:
        raise BadCallError(str(error), name[0]) from None
    return name[0], arguments, position


def _arguments(text: str, position: int) -> tuple[dict[str, JsonValue], int]:
    arguments, position = dict[str, JsonValue](), skip_blanks(text, position)
    while text[position : position + 1] != ")":
        if (key := _KEY.match(text, position)) is None:
            raise BadPythonError(f"expected argument=value {near(text, position)}")
        if key[1] in arguments:
            raise BadPythonError(f"the argument '{key[1]}' is written twice")
        arguments[key[1]], position = read_literal(text, key.end())
        found, position = expect(text, position, ",", ")")
        if found == ")":
            return arguments, position
        position = skip_blanks(text, position)
    return arguments, position + 1
