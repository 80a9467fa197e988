"""Parser of the Hermes and Qwen format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

import re

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import call_name, call_of, read_call_json
from agentrl.chat.parsers.json_text import BadJSONError, read_json
from agentrl.chat.parsers.thinking import THINK, THINK_END

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(f"{OPEN}|{THINK}|{THINK_END}")
_BLOCK_END = re.compile(f"{CLOSE}|{THINK_END}")
_EXPECTED = f'Write {OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSE}'


class HermesParser:
    """Parser of `<tool_call>` blocks; all other text is content.

    - Text inside `<think>...</think>` is thoughts; calls inside thoughts are ignored. If `</think>` comes before any
      `<think>`, all text before this `</think>` is thoughts. Several thoughts of a turn are joined by newlines.
    - `arguments` may be an object, or a string that contains an object.
    - A block ends at the first `</tool_call>` after its JSON, so an argument may contain `</tool_call>`. An argument
      must not contain `<tool_call>`, which always starts a new block. So each block is parsed only once, and parsing
      time is linear in the text's length.
    """

    stop: tuple[str, ...] = ()

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        contents, thoughts, calls = list[str](), list[str](), list[ParsedCall]()
        position, thoughts_possible = 0, True
        while tag := _TAG.search(text, position):
            contents.append(text[position : tag.start()])
            if tag[0] == OPEN:
                call, position = _read_block(text, tag.end())
                calls.append(call)
                continue
            end = text.find(THINK_END, tag.start())
            position = len(text) if end < 0 else end + len(THINK_END)
            if tag[0] == THINK:
                thoughts.append(text[tag.end() : end if end >= 0 else len(text)].strip())
            elif thoughts_possible:
                contents, thoughts, calls = [], [text[: tag.start()].strip()], []
            else:
                contents.append(tag[0])
            thoughts_possible = False
        contents.append(text[position:])
        return ParsedTurn("".join(contents).strip(), tuple(calls), "\n".join(filter(None, thoughts)))


def _read_block(text: str, start: int) -> tuple[ParsedCall, int]:
    """Return the call of the block whose body starts at `start`, and the position at which parsing continues."""
    limit = text.find(OPEN, start)
    block = text[start : limit if limit >= 0 else len(text)]
    read: tuple[JsonValue, int] | None
    try:
        read = read_json(block)
    except BadJSONError:  # `_read_call` reports the error of the block's body
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
        value, end = (read[0], read[1] - num_blanks) if read else read_call_json(body)
        name = call_name(value)
        if rest := body[end:]:
            raise BadJSONError(f"There is more than one JSON object in the tool call: {rest[:20]!r} follows the first.")
        if not closed:
            raise BadJSONError(f"The tool call is not closed: {CLOSE} is missing.")
        return call_of(value, body, _EXPECTED)
    except BadJSONError as error:
        return ParsedCall(name, body, f"{error} {_EXPECTED}")
