"""Parser of harmony, the format of gpt-oss: a turn is a series of messages with a channel and a recipient.

<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>commentary to=functions.name
<|constrain|>json<|message|>{"argument": "value"}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import call_with_name, malformed_call, read_call_json
from agentrl.chat.parsers.json_text import BadJSONError

CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
_END = re.compile(r"(<\|(?:end|call|return|start)\|>)")
_TO = r"(?: ?\bto=(?:functions\.)?([^\s<>]{1,200})(?![^\s<>]))?"
_HEADER = re.compile(rf"{_TO} ?(?:<\|channel\|> ?(\w{{1,20}})\b)?{_TO} ?(?:<\|constrain\|>)? ?\w{{0,20}}")
_RECIPIENT = re.compile(r"\bto=\S")
_EXPECTED = f'Write {CHANNEL}commentary to=functions.name <|constrain|>json{MESSAGE}{{"argument": "value"}}<|call|>'


class GptOssParser:
    """Parser of the messages of a turn, which begins after `<|start|>assistant`.

    - A message with a recipient (`to=functions.name`, before or after the channel) is a call, on any channel.
    - Other messages on the channel `analysis` are thoughts. All other messages are content.
    - `<|end|>`, `<|call|>`, `<|return|>` and `<|start|>` end a message, even inside an argument. So each message is
      parsed only once, and parsing time is linear in the text's length. The last message has no such mark, because the
      end-of-turn token is removed.
    """

    stop: tuple[str, ...] = ()

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        messages = list(_messages(text))
        calls = tuple(message.call() for message in messages if message.kind == "call")
        return ParsedTurn(_joined(messages, "content"), calls, _joined(messages, "thoughts"))

    def split_thinking(self, text: str) -> tuple[str, str]:
        """Split a turn into (thoughts, other messages). Calls stay as they are written."""
        messages = list(_messages(text))
        return _joined(messages, "thoughts"), _joined(messages, "content", "call")


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of a turn.

    Attributes:
        name: the recipient without `functions.`; "" if the message has none, or if the call is malformed.
        body: the text after the header; for a malformed call, the complete text of the message.
        written: the complete text of the message.
        mistake: a sentence about a malformed call; "" if there is none.
    """

    kind: Literal["call", "content", "thoughts"]
    name: str
    body: str
    written: str
    mistake: str = ""

    def call(self) -> ParsedCall:
        """Return the message as a call; only for messages of kind `call`."""
        try:
            if self.mistake:
                raise BadJSONError(self.mistake)
            value, end = read_call_json(self.body)
            if rest := self.body[end:].strip():
                raise BadJSONError(f"There is more than one JSON object in the tool call: {rest[:20]!r} follows.")
            return call_with_name(self.name, value)
        except BadJSONError as error:
            return malformed_call(self.name, self.body, error, _EXPECTED)


def _messages(text: str) -> Iterator[_Message]:
    """Yield the messages of a turn, except empty messages."""
    pieces = ["", *_END.split(text), ""]
    for before, piece, after in zip(pieces[::2], pieces[1::2], pieces[2::2], strict=False):
        written = piece.removeprefix("assistant") if before == START else piece
        if written.strip():
            yield _read_message(written, closed=after != START)


def _read_message(written: str, *, closed: bool) -> _Message:
    header, separator, body = written.partition(MESSAGE)
    header = " ".join(header.split())
    found = _HEADER.fullmatch(header)
    names = [name for name in found.group(1, 3) if name] if found else []
    if names or (_RECIPIENT.search(header) and (separator or CHANNEL in header)):
        mistake = _mistake(header, names, has_body=bool(separator), closed=closed)
        return _Message("call", "" if mistake else names[0], written if mistake else body, written, mistake)
    kind: Literal["content", "thoughts"] = "thoughts" if f"{CHANNEL}analysis" in header else "content"
    if separator:
        return _Message(kind, "", written if found is None and kind == "content" else body, written)
    return _Message(kind, "", "" if CHANNEL in header else written, written)


def _mistake(header: str, names: Sequence[str], *, has_body: bool, closed: bool) -> str:
    """Return a sentence about a mistake around the body of a call; "" if there is none."""
    if not has_body:
        return f"The tool call ends before {MESSAGE}."
    if len(names) != 1:
        return f"The header of the tool call cannot be read: {header[:80]!r}."
    return "" if closed else f"The tool call is not closed: <|call|> is missing before {START}."


def _joined(messages: list[_Message], *kinds: str) -> str:
    return "\n".join(filter(None, (_shown(message) for message in messages if message.kind in kinds)))


def _shown(message: _Message) -> str:
    return (message.written if message.kind == "call" else message.body).strip()
