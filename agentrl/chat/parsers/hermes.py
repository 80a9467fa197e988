"""Parser of the Hermes and Qwen format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

import re

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_text import BadJSONError, is_unicode, json_type, read_json, read_object, write_json

OPEN, CLOSE, THINK, THINK_END = "<tool_call>", "</tool_call>", "<think>", "</think>"
_TAG = re.compile(f"{OPEN}|{THINK}|{THINK_END}")
_BLOCK_END = re.compile(f"{CLOSE}|{THINK_END}")
_EXPECTED = f'Write {OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSE}'


class HermesParser:
    """Parser of `<tool_call>` blocks; all other text is content.

    - Calls inside `<think>...</think>` are ignored. If `</think>` comes first, the prompt contained `<think>`.
    - `arguments` may be an object, or a string that contains an object.
    - A block ends at the first `</tool_call>` after its JSON, so an argument may contain `</tool_call>`. An argument
      must not contain `<tool_call>`, which always starts a new block. So parsing time is linear in the text's length.
    """

    stop: tuple[str, ...] = ()

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        contents, calls = list[str](), list[ParsedCall]()
        position, thoughts_possible = 0, True
        while tag := _TAG.search(text, position):
            contents.append(text[position : tag.start()])
            if tag[0] == OPEN:
                call, position = _read_block(text, tag.end())
                calls.append(call)
                continue
            end = text.find(THINK_END, tag.start())
            position = len(text) if end < 0 else end + len(THINK_END)
            contents.append(text[tag.start() : position])
            if tag[0] == THINK_END and thoughts_possible:
                contents, calls = [text[:position]], []
            thoughts_possible = False
        contents.append(text[position:])
        return ParsedTurn("".join(contents).strip(), tuple(calls))


def _read_block(text: str, start: int) -> tuple[ParsedCall, int]:
    """Return the call of the block whose body starts at `start`, and the position at which parsing continues."""
    limit = text.find(OPEN, start)
    block = text[start : limit if limit >= 0 else len(text)]
    read: tuple[JsonValue, int] | None
    try:
        read = read_json(block)
    except BadJSONError:  # `_read_call` reports the error, for the block's body only
        read = None
    close = _BLOCK_END.search(block, read[1] if read else 0)
    body = block[: close.start()] if close else block
    if close is None or close[0] == THINK_END:
        return _read_call(body, read, closed=False), start + len(body)
    return _read_call(body, read, closed=True), start + close.end()


def _read_call(body: str, read: tuple[JsonValue, int] | None, *, closed: bool) -> ParsedCall:
    """Return the call in the text between two tags; `read` is the JSON value at the start of the text, if any."""
    name, num_blanks, body = "", len(body) - len(body.lstrip()), body.strip()
    try:
        value, end = (read[0], read[1] - num_blanks) if read else _json(body)
        if isinstance(value, dict) and isinstance(given := value.get("name"), str) and is_unicode(given):
            name = given
        if rest := body[end:]:
            raise BadJSONError(f"There is more than one JSON object in the tool call: {rest[:20]!r} follows the first.")
        if not closed:
            raise BadJSONError(f"The tool call is not closed: {CLOSE} is missing.")
        if not isinstance(value, dict):
            raise BadJSONError(f"The tool call is {json_type(value)}, not a JSON object.")
        if not name:
            raise BadJSONError('The tool call has no "name", or one that is not text.')
        if "arguments" not in value:
            raise BadJSONError('The tool call has no "arguments"; write {} for none.')
        return ParsedCall(name, _arguments(value["arguments"]))
    except BadJSONError as error:
        return ParsedCall(name, body, f"{error} {_EXPECTED}")


def _json(body: str) -> tuple[JsonValue, int]:
    try:
        return read_json(body)
    except BadJSONError as error:
        raise BadJSONError(f"The tool call is not valid JSON: {error}.") from None


def _arguments(value: JsonValue) -> str:
    try:
        if isinstance(value, str):
            value = read_object(value)
        if not isinstance(value, dict):
            raise BadJSONError(f"expected a JSON object, found {json_type(value)}")
        return write_json(value)
    except BadJSONError as error:
        raise BadJSONError(f'"arguments": {error}.') from None
