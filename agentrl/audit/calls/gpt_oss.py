"""Parser of harmony, the format of gpt-oss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.audit.calls.json_values import finite_object, only_json
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable

_CHANNEL, _MESSAGE, _START = "<|channel|>", "<|message|>", "<|start|>"
_MARK = re.compile(r"<\|(?:end|call|return|start)\|>")
_ADDRESS = re.compile(r"\bto=\S")
_NAME = re.compile(r"[^\s<>]+")


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of a turn: the text from its header to the mark that ends it.

    Attributes:
        closed: whether an end mark or the turn's end ends the message; false: the start of another message ends it.
        begun: whether the mark `<|message|>`, after which the text begins, follows the header.
    """

    written: str
    closed: bool
    header: str
    begun: bool
    body: str

    @property
    def recipients(self) -> list[str] | None:
        """Names of the tools in the header; None if the header does not have the form in `_recipients`."""
        return _recipients(self.header)

    @property
    def is_call(self) -> bool:
        addressed = _ADDRESS.search(self.header) is not None and (self.begun or _CHANNEL in self.header)
        return bool(self.recipients) or addressed

    @property
    def is_thought(self) -> bool:
        return not self.is_call and f"{_CHANNEL}analysis" in self.header

    @property
    def text(self) -> str:
        """The text of a message that is not a call."""
        if not self.begun:
            return "" if _CHANNEL in self.header else self.written.strip()
        unknown = self.recipients is None and not self.is_thought
        return (self.written if unknown else self.body).strip()

    @property
    def call(self) -> Call:
        names = self.recipients or []
        if not (self.begun and self.closed and len(names) == 1):
            return Call("", None, self.written.strip())
        name = names[0] if storable(names[0]) else ""
        return Call(name, finite_object(only_json(self.body)[0]) if name else None, self.body.strip())


def read_gpt_oss(text: str) -> ParsedTurn:
    """Parse messages: a call has a recipient, `to=functions.name`; messages in the channel `analysis` are thoughts.

    `<|end|>`, `<|call|>`, `<|return|>` and `<|start|>` always end a message. A message to a tool is malformed
    if it ends before its text or at the start of another message, if it has two recipients, or if its header cannot be
    read.
    """
    messages = list(_messages(text))
    content = [message.text for message in messages if not message.is_call and not message.is_thought]
    calls = tuple(message.call for message in messages if message.is_call)
    return ParsedTurn(_joined(content), calls, _thoughts(messages))


def read_plain_gpt_oss(text: str) -> ParsedTurn:
    """Separate thoughts from content. Calls are not parsed and stay in the content."""
    messages = list(_messages(text))
    content = [
        message.written.strip() if message.is_call else message.text for message in messages if not message.is_thought
    ]
    return ParsedTurn(_joined(content), (), _thoughts(messages))


def _thoughts(messages: list[_Message]) -> str:
    return _joined([message.text for message in messages if message.is_thought])


def _joined(texts: list[str]) -> str:
    return "\n".join(text for text in texts if text)


def _messages(text: str) -> Iterator[_Message]:
    start, opened = 0, False
    while start <= len(text):
        mark = _MARK.search(text, start)
        stop = mark.start() if mark else len(text)
        written = text[start:stop].removeprefix("assistant") if opened else text[start:stop]
        start, opened = mark.end() if mark else len(text) + 1, mark is not None and mark[0] == _START
        if written.strip():
            header, begins, body = written.partition(_MESSAGE)
            yield _Message(written, not opened, " ".join(header.split()), bool(begins), body)


def _recipients(header: str) -> list[str] | None:
    """Return the recipients in a header; None if the header does not have the form described below.

    A header consists of these optional parts: recipient, channel, recipient, `<|constrain|>`, type of the content.
    """
    first, rest = _recipient(header)
    rest = _channel(rest)
    second, rest = _recipient(rest)
    kind = rest.removeprefix(" ").removeprefix("<|constrain|>").removeprefix(" ")
    return [*first, *second] if re.fullmatch(r"\w{0,20}", kind) else None


def _recipient(header: str) -> tuple[list[str], str]:
    """Return the recipients at the start of the header (one or none), and the rest of the header."""
    written = header.removeprefix(" ").removeprefix("to=")
    found = _NAME.match(written)
    if found is None or not header.removeprefix(" ").startswith("to="):
        return [], header
    name = found[0].removeprefix("functions.") or found[0]
    return ([name], written[found.end() :]) if len(name) <= 200 else ([], header)


def _channel(header: str) -> str:
    """Return the rest of a header after its channel; the complete header if it does not start with a channel."""
    found = re.match(r" ?<\|channel\|> ?(\w+)", header)
    return header[found.end() :] if found and len(found[1]) <= 20 else header
