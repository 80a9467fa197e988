"""Parser of the format of Muse Glimmer: a turn is a series of messages with a recipient.

 to=self<|message|>thoughts<|eom|><|start|>assistant to=name<|message|><atem:function_calls>
<atem:invoke name="name">
<atem:parameter name="argument">value</atem:parameter>
</atem:invoke>
</atem:function_calls>
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import call_with_name, malformed_call
from agentrl.chat.parsers.json_text import BadJSONError
from agentrl.chat.parsers.parameter_types import ParameterTypes, near
from agentrl.types.messages import ToolSchema

MESSAGE, END, START = "<|message|>", "<|eom|>", "<|start|>"
_BETWEEN = re.compile(r"<\|(?:eom|eot)\|>|<\|start\|>(?:assistant)?")
_RECIPIENT = re.compile(r"\s*\bto=([^\s<>]{1,200})\s*")
_BEGIN = re.compile(r"\s*<atem:function_calls>")
_INVOKE = re.compile(r'\s*<atem:invoke name="([^"<>\n]{1,200})">')
_PARAMETER = re.compile(
    r'\s*<atem:parameter name="(?P<name>[^"<>\n]{1,200})">(?P<value>.*?)</atem:parameter>'
    r"(?=\s*(?:<atem:parameter |</atem:invoke>))",
    re.DOTALL,
)
_INVOKE_END = re.compile(r"\s*</atem:invoke>")
_END = re.compile(r"\s*</atem:function_calls>\s*\Z")
_EXPECTED = (
    'Write to=name<|message|><atem:function_calls>\n<atem:invoke name="name">\n'
    '<atem:parameter name="argument">value</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)


Kind = Literal["call", "content", "thoughts"]
_KINDS: Mapping[str, Kind] = {"self": "thoughts", "user": "content"}


class _Message(NamedTuple):
    kind: Kind
    text: str


class MuseGlimmerParser:
    """Parser of the messages of a turn, which begins after `<|start|>assistant`.

    - A message to `self` is thoughts; a message to `user`, or to nobody, is content. All other messages are calls.
    - The type of a value comes from the tool's schema (see `for_tools`); without a schema, it is text.
    - `<|eom|>`, `<|eot|>` and `<|start|>` always end a message. So each message is parsed only once, and parsing time
      is linear in the text's length.
    - The prompt names recipients as `name.*`. So `name.name` calls the tool `name`, if no tool is called `name.name`.
    """

    stop: tuple[str, ...] = ()

    def __init__(self, schemas: Sequence[ToolSchema] = ()) -> None:
        self._types, self._names = ParameterTypes(schemas), {schema.name for schema in schemas}

    def for_tools(self, schemas: Sequence[ToolSchema]) -> MuseGlimmerParser:
        """Return a parser for turns in which these tools are available."""
        return MuseGlimmerParser(schemas)

    def split_thinking(self, text: str) -> tuple[str, str]:
        """Split a turn into (thoughts, other messages)."""
        messages = list(_messages(text))
        return _joined(messages, "thoughts"), _joined(messages, "content", "call")

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        messages = list(_messages(text))
        calls = [call for message in messages if message.kind == "call" for call in self._read_calls(message.text)]
        return ParsedTurn(_joined(messages, "content"), tuple(calls), _joined(messages, "thoughts"))

    def _read_calls(self, body: str) -> list[ParsedCall]:
        """Return the calls of a message; after a mistake, one malformed call."""
        calls, name = list[ParsedCall](), ""
        try:
            position = _expect(_BEGIN, body, 0, "<atem:function_calls>").end()
            while not calls or not _END.match(body, position):
                head = _expect(_INVOKE, body, position, "an invocation or the end")
                name = self._tool(head[1])
                arguments, position = self._types.read(name, _PARAMETER, body, head.end())
                position = _expect(_INVOKE_END, body, position, "a parameter or </atem:invoke>").end()
                calls.append(call_with_name(name, arguments))
            return calls
        except BadJSONError as error:
            return [malformed_call(name, body, error, _EXPECTED)]

    def _tool(self, name: str) -> str:
        first, _, second = name.partition(".")
        return first if first == second and first in self._names and name not in self._names else name


def _expect(pattern: re.Pattern[str], body: str, position: int, what: str) -> re.Match[str]:
    if found := pattern.match(body, position):
        return found
    raise BadJSONError(f"The tool call has {near(body, position)} instead of {what}.")


def _messages(text: str) -> Iterator[_Message]:
    for piece in _BETWEEN.split(text):
        header, mark, body = piece.partition(MESSAGE)
        found = _RECIPIENT.search(header) if mark else _RECIPIENT.fullmatch(header)
        recipient = found[1] if found else "user"
        if not mark and any(name.startswith(recipient) for name in ("self", "user")):  # no header, or a truncated one
            yield _Message("content", piece)
        else:
            yield _Message(_KINDS.get(recipient, "call"), body if mark else piece)


def _joined(messages: list[_Message], *kinds: str) -> str:
    return "\n".join(filter(None, (message.text.strip() for message in messages if message.kind in kinds)))
