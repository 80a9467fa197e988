"""Parser of the format of Gemma 4: `<|tool_call>call:name{argument:<|"|>text<|"|>,other:[1,null]}<tool_call|>`."""

from __future__ import annotations

import json
import re

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import call_with_name, malformed_call
from agentrl.chat.parsers.json_text import BadJSONError
from agentrl.chat.parsers.python_text import BadPythonError, read_literal

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_THOUGHTS = re.compile(r"<\|channel>(?:thought\b)?(.*?)(?:<channel\|>|\Z)", re.DOTALL)
_NAME = re.compile(r"\s*call:([^\s<>{}]{1,200})(?=\{)")
_KEY = re.compile(r"(?<=[{,])[ \n]?([^:,{}\[\]\s][^:,{}\[\]]{0,200}):")
_OTHER_TEXT = re.compile(r"[\"'(\\]")
_EXPECTED = f"Write {OPEN}call:name{{argument:{QUOTE}text{QUOTE},other:1}}{CLOSE}"


class Gemma4Parser:
    """Parser of the calls after each `<|tool_call>`; all other text is content.

    - A text argument is between two marks `<|"|>` and cannot contain this mark. Names of arguments have no marks.
    - A text argument must not contain `<|tool_call>`, which always begins a call. So each call is parsed only once, and
      parsing time is linear in the text's length.
    - Thoughts are between `<|channel>` and `<channel|>`, anywhere in the turn.
    """

    stop: tuple[str, ...] = ()

    def split_thinking(self, text: str) -> tuple[str, str]:
        """Split a turn into (thoughts without marks, text around them)."""
        thoughts = [found.strip() for found in _THOUGHTS.findall(text)]
        return "\n".join(filter(None, thoughts)), _THOUGHTS.sub("", text)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, _ = self.split_thinking(text)
        contents, calls = list[str](), list[ParsedCall]()
        for piece in _THOUGHTS.split(text)[::2]:  # piece by piece, because joined pieces could form a mark
            content, *blocks = piece.split(OPEN)
            read = [_read_block(block) for block in blocks]
            contents += [content, *(rest for _, rest in read)]
            calls += [call for call, _ in read]
        return ParsedTurn("".join(contents).strip(), tuple(calls), thinking)


def _read_block(block: str) -> tuple[ParsedCall, str]:
    """Return the call in the text after `<|tool_call>`, and the text that follows the call."""
    body, closed, rest = _partition(block)
    name = ""
    try:
        if (head := _NAME.match(body)) is None:
            raise BadJSONError(f"The tool call does not begin with call:name{{, but with {body.strip()[:20]!r}.")
        name = head[1]
        if not closed:
            raise BadJSONError(f"The tool call is not closed: {CLOSE} is missing.")
        literal = _as_python(body[head.end() :])
        value, end = read_literal(literal, 0)
        if left := literal[end:].strip():
            raise BadJSONError(f"{left[:20]!r} follows the arguments of the tool call.")
        return call_with_name(name, value), rest
    except BadPythonError as error:
        mistake = BadJSONError(f"The arguments of the tool call cannot be read: {error}.")
        return malformed_call(name, body, mistake, _EXPECTED), rest
    except BadJSONError as error:
        return malformed_call(name, body, error, _EXPECTED), rest


def _partition(block: str) -> tuple[str, bool, str]:
    """Split at the first `<tool_call|>` that is not inside a text argument; also return whether there is one."""
    position, pieces = 0, block.split(QUOTE)
    for number, piece in enumerate(pieces):
        if number % 2 == 0 and (found := piece.find(CLOSE)) >= 0:
            return block[: position + found], True, block[position + found + len(CLOSE) :]
        position += len(piece) + len(QUOTE)
    body, _, rest = block.partition(CLOSE)  # a text is not closed: the call ends at the first `<tool_call|>`
    return body, False, rest


def _as_python(written: str) -> str:
    """Convert arguments in Gemma's syntax to a Python literal of the same value."""
    pieces = written.split(QUOTE)
    for number, piece in enumerate(pieces):
        if number % 2:
            pieces[number] = json.dumps(piece, ensure_ascii=False)
        elif found := _OTHER_TEXT.search(piece):
            raise BadJSONError(f"The tool call has {piece[found.start() :][:20]!r} outside of a text in {QUOTE}.")
        else:
            pieces[number] = _KEY.sub(lambda key: json.dumps(key[1].strip(), ensure_ascii=False) + ":", piece)
    return "".join(pieces)
