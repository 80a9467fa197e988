"""Parser of Llama 3.1's format: `{"name": ..., "parameters": {...}}`, and calls of its built-in tools."""

from __future__ import annotations

import re

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import call_of, read_call_json
from agentrl.chat.parsers.json_text import BadJSONError, write_json
from agentrl.chat.parsers.python_call import read_call
from agentrl.chat.parsers.python_text import BadPythonError, skip_blanks
from agentrl.chat.parsers.thinking import split_thinking

TAG = "<|python_tag|>"
_KEYS = ("parameters", "arguments")
_CALL = re.compile(r'\s*\{\s*"(?:name|parameters|arguments|type"\s*:\s*"function)"')
_BUILTIN = re.compile(r"\s*([\w.-]+)\.call\(")
_EXPECTED = 'Write {"name": "...", "parameters": {...}}'


class Llama3JSONParser:
    """Parser of calls at the start of a turn, or after `<|python_tag|>`; all other text is content.

    - Several calls are separated by `;`. Text after the last call is content.
    - Without `<|python_tag|>`, a JSON object at the start of a turn is a call if it begins with the key `name`,
      `parameters` or `arguments`, or with `"type": "function"`. Other JSON without the tag is content.
    - `<|python_tag|>tool.call(query="...")` calls a built-in tool. Other Python code after the tag is a malformed call.
    """

    stop: tuple[str, ...] = ()

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = ("", text) if _CALL.match(text) else split_thinking(text, call=TAG)
        content, tag, calls_text = answer.partition(TAG)
        if not tag and _CALL.match(answer):
            content, calls_text = "", answer
        elif not tag:
            return ParsedTurn(answer.strip(), thinking=thinking)
        calls, end = _read_calls(calls_text)
        return ParsedTurn((content + calls_text[end:]).strip(), tuple(calls), thinking)


def _read_calls(text: str) -> tuple[list[ParsedCall], int]:
    """Return the calls, and the end of the last call. After a mistake, the rest of the text is one malformed call."""
    calls, position = list[ParsedCall](), 0
    while True:
        try:
            call, position = _builtin(text, position) if _BUILTIN.match(text, position) else _json(text, position)
        except (BadJSONError, BadPythonError) as error:
            calls.append(ParsedCall("", text[position:].strip(), f"{error} {_EXPECTED}"))
            return calls, len(text)
        calls.append(call)
        following = skip_blanks(text, position)
        if text[following : following + 1] != ";":
            return calls, position
        position = following + 1


def _json(text: str, start: int) -> tuple[ParsedCall, int]:
    value, end = read_call_json(text, start)
    return call_of(value, text[start:end].strip(), _EXPECTED, _KEYS), end


def _builtin(text: str, start: int) -> tuple[ParsedCall, int]:
    name, arguments, end = read_call(text, start)
    return ParsedCall(name.removesuffix(".call"), write_json(arguments)), end
