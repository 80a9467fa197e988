"""Parser of the format of Muse Glimmer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.audit.calls.json_values import after_blanks, finite_object
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable
from agentrl.audit.calls.typed_text import Types
from agentrl.audit.reading.run_info import Json, tool_name

_NEXT_MESSAGE = re.compile(r"<\|eo[mt]\|>|<\|start\|>assistant|<\|start\|>")
_TO = re.compile(r"\bto=([^\s<>]{1,200})")
_INVOKE = re.compile(r'<atem:invoke name="([^"<>\n]{1,200})">\s*')
_KEY = re.compile(r'<atem:parameter name="([^"<>\n]{1,200})">')
_VALUE_END = re.compile(r"</atem:parameter>\s*(?=<atem:parameter |</atem:invoke>)")
_LAST = re.compile(r"</atem:function_calls>\s*\Z")
_BEGIN, _INVOKE_END = "<atem:function_calls>", "</atem:invoke>"


class _MalformedError(Exception):
    """A message to a tool contains a mistake."""


def read_muse_glimmer(text: str, tools: Sequence[Json]) -> ParsedTurn:
    """Parse messages: those to `self` are thoughts, those to `user` or nobody are content, all others are calls.

    If a message to a tool contains a mistake, the complete message is one malformed call.
    """
    calls, types = list[Call](), Types(tools)
    names = {str(tool_name(tool)) for tool in tools}
    for recipient, body in _messages(text):
        if recipient not in ("self", "user"):
            calls += _Invocations(body, types, names).calls()
    return ParsedTurn(_joined(text, "user"), tuple(calls), _joined(text, "self"))


def read_plain_muse_glimmer(text: str) -> ParsedTurn:
    """Separate thoughts from content. Calls are not parsed and stay in the content."""
    shown = [body.strip() for recipient, body in _messages(text) if recipient != "self"]
    return ParsedTurn("\n".join(filter(None, shown)), (), _joined(text, "self"))


def _joined(text: str, recipient: str) -> str:
    return "\n".join(filter(None, (body.strip() for found, body in _messages(text) if found == recipient)))


def _messages(text: str) -> list[tuple[str, str]]:
    """Recipient and text of each message. A message that ends in its header has the header as its text."""
    messages = list[tuple[str, str]]()
    for written in _NEXT_MESSAGE.split(text):
        header, begins, body = written.partition("<|message|>")
        found = _TO.search(header) if begins else _TO.fullmatch(header.strip())
        recipient = found[1] if found else "user"
        unknown = not begins and ("self".startswith(recipient) or "user".startswith(recipient))
        messages.append(("user" if unknown else recipient, body if begins else written))
    return messages


class _Invocations:
    """Reader of the calls in a message; each call is an `<atem:invoke>` tag."""

    def __init__(self, body: str, types: Types, names: set[str]) -> None:
        self._body, self._types, self._names = body, types, names
        self._at, self._name = after_blanks(body, 0), ""

    def calls(self) -> list[Call]:
        """Return the calls; if the body contains a mistake, return one malformed call."""
        calls = list[Call]()
        try:
            self._skip(_BEGIN)
            while not calls or not _LAST.match(self._body, self._at):
                calls.append(self._call())
        except _MalformedError:
            return [Call(self._name if storable(self._name) else "", None, self._body.strip())]
        return calls

    def _skip(self, mark: str) -> None:
        if not self._body.startswith(mark, self._at):
            raise _MalformedError
        self._at = after_blanks(self._body, self._at + len(mark))

    def _call(self) -> Call:
        head = _INVOKE.match(self._body, self._at)
        if head is None:
            raise _MalformedError
        self._name, self._at = self._tool(head[1]), head.end()
        arguments = finite_object(self._arguments())
        self._skip(_INVOKE_END)
        if arguments is None or not storable(self._name):
            raise _MalformedError
        return Call(self._name, arguments)

    def _arguments(self) -> dict[str, Json]:
        arguments = dict[str, Json]()
        while (key := _KEY.match(self._body, self._at)) and (end := _VALUE_END.search(self._body, key.end())):
            if (argument := key[1].strip()) in arguments:
                raise _MalformedError
            arguments[argument] = self._types.value(self._name, argument, self._body[key.end() : end.start()])
            self._at = end.end()
        return arguments

    def _tool(self, written: str) -> str:
        """Return the tool's name. `name.name` means the tool `name`, unless a tool is called `name.name`."""
        first, _, second = written.partition(".")
        twice = first == second and first in self._names and written not in self._names
        return first if twice else written
