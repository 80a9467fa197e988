"""Parser of the format of Muse Glimmer: a turn is a series of messages with a recipient.

 to=self<|message|>thoughts<|eom|><|start|>assistant to=tool<|message|><atem:function_calls>
<atem:invoke name="tool">
<atem:parameter name="argument">value</atem:parameter>
</atem:invoke>
</atem:function_calls>
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import malformed_call
from agentrl.chat.parsers.json_text import BadJSONError
from agentrl.chat.parsers.marked.invoke_calls import InvokeReader, InvokeTags
from agentrl.types.messages import ToolSchema

MESSAGE = "<|message|>"
TAGS = InvokeTags("atem:", ("atem:function_calls",))
_MARK = re.compile(r"(<\|(?:eom|eot|start)\|>)")
_HEADER = re.compile(r"\s*(?:to=(\S{1,200})\s*)?")


class MuseGlimmerParser:
    """Parser of the messages of a turn, which begins after `<|start|>assistant`.

    - Messages to `self` are thoughts. Calls are in all other messages; the text around them is content.
    - A message to a tool without a call is a malformed call.
    - `<|eom|>`, `<|eot|>` and `<|start|>` end a message, also inside of an argument.
    """

    stop: tuple[str, ...] = ()

    def __init__(self, schemas: Sequence[ToolSchema] = ()) -> None:
        self._reader = InvokeReader(TAGS, schemas)

    def for_tools(self, schemas: Sequence[ToolSchema]) -> MuseGlimmerParser:
        """Return a parser for turns in which these tools are available."""
        return MuseGlimmerParser(schemas)

    def split_thinking(self, text: str) -> tuple[str, str]:
        """Split a turn into (thoughts, other messages). Calls stay as they are written."""
        messages = list(_messages(text))
        thoughts = (message.body for message in messages if message.recipient == "self")
        return _joined(thoughts), _joined(message.body for message in messages if message.recipient != "self")

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        contents, calls = list[str](), list[ParsedCall]()
        for message in _messages(text):
            if message.recipient != "self":
                content, found = self._read(message)
                contents.append(content)
                calls += found
        return ParsedTurn(_joined(contents), tuple(calls), self.split_thinking(text)[0])

    def _read(self, message: _Message) -> tuple[str, list[ParsedCall]]:
        content, calls = self._reader.read(message.body)
        if calls or message.recipient in ("", "user"):
            return content, calls
        error = BadJSONError(f"The message to '{message.recipient[:80]}' has no tool call.")
        return "", [malformed_call(message.recipient, content, error, TAGS.expected)]


class _Message(NamedTuple):
    """A message; `recipient` is "" if it has none, or if it has no complete header."""

    recipient: str
    body: str


def _messages(text: str) -> Iterator[_Message]:
    """The messages of a turn that are not empty."""
    pieces = ["", *_MARK.split(text)]
    for mark, piece in zip(pieces[::2], pieces[1::2], strict=True):
        written = piece.removeprefix("assistant") if mark == "<|start|>" else piece
        header, begun, body = written.partition(MESSAGE)
        found = _HEADER.fullmatch(header) if begun else None
        if written.strip():
            yield _Message(found[1] or "", body) if found else _Message("", written)


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(filter(None, map(str.strip, texts)))
