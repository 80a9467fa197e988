"""Parser of the XML format of Qwen3-Coder, Qwen3.5 and later, and Nemotron 3.

<tool_call>
<function=name>
<parameter=argument>
value
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_text import BadJSONError, is_unicode, write_json
from agentrl.chat.parsers.parameter_types import ParameterTypes, near
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.types.messages import ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BARE = re.compile(r"^[ \t]*<function=", re.MULTILINE)
_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,200})>")
_PARAMETER = re.compile(
    r"\s*<parameter=(?P<name>[^<>\n]{1,200})>\n?(?P<value>.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>))",
    re.DOTALL,
)
_END = re.compile(r"\s*</function>")
_EXPECTED = f"Write {OPEN}\n<function=name>\n<parameter=argument>\nvalue\n</parameter>\n</function>\n{CLOSE}"


class Qwen3CoderParser:
    """Parser of `<tool_call>` blocks that contain `<function=...>`; all other text is content.

    - A value is the text between its tags, without one line break at each end. Its type comes from the tool's schema
      (see `for_tools`); without a schema, it is text.
    - A value ends at the first `</parameter>` that is followed by another parameter or by the end of the function. It
      must not contain `<tool_call>`, which always starts a new block. So each block is parsed only once, and parsing
      time is linear in the text's length.
    - Models sometimes omit `<tool_call>`: `<function=...>` at the start of a line is a call, too.
    """

    stop: tuple[str, ...] = ()

    def __init__(self, schemas: Sequence[ToolSchema] = ()) -> None:
        self._types = ParameterTypes(schemas)

    def for_tools(self, schemas: Sequence[ToolSchema]) -> Qwen3CoderParser:
        """Return a parser for turns in which these tools are available."""
        return Qwen3CoderParser(schemas)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = split_thinking(text, call=OPEN)
        first, *blocks = answer.split(OPEN)
        contents, calls = list[str](), list[ParsedCall]()
        if bare := _BARE.search(first):
            first, *blocks = first[: bare.start()], first[bare.start() :], *blocks
        contents.append(first)
        for block in blocks:
            found, content = self._read_block(block)
            calls += found
            contents.append(content)
        return ParsedTurn("".join(contents).strip(), tuple(calls), thinking)

    def _read_block(self, block: str) -> tuple[list[ParsedCall], str]:
        """Return the calls of the text after `<tool_call>`, and the content that follows them."""
        calls, position = list[ParsedCall](), 0
        while not calls or _FUNCTION.match(block, position):
            name, end, result = self._read_function(block, position)
            if isinstance(result, str):
                body, _, content = block[position:].partition(CLOSE)
                return [*calls, ParsedCall(name, body.strip(), f"{result} {_EXPECTED}")], content
            calls.append(_call(name, result, block[position:end]))
            position = end
        rest = block[position:]
        return calls, rest.lstrip().removeprefix(CLOSE) if rest.lstrip().startswith(CLOSE) else rest

    def _read_function(self, block: str, start: int) -> tuple[str, int, dict[str, JsonValue] | str]:
        """Return (name, end, arguments) of a function call; after a mistake, a sentence replaces the arguments."""
        if (head := _FUNCTION.match(block, start)) is None:
            return "", start, f"The tool call does not begin with <function=name>, but with {near(block, start)}."
        name = head[1].strip() if is_unicode(head[1]) else ""
        try:
            arguments, position = self._types.read(name, _PARAMETER, block, head.end())
        except BadJSONError as error:
            return name, head.end(), str(error)
        if (end := _END.match(block, position)) is None:
            where = f"{near(block, position)} follows the {'parameters' if arguments else 'name'}"
            return name, position, f"The tool call has no </function> after complete parameters: {where}."
        return name, end.end(), arguments


def _call(name: str, arguments: dict[str, JsonValue], body: str) -> ParsedCall:
    try:
        if not name:
            raise BadJSONError("its name is not text")
        return ParsedCall(name, write_json(arguments))
    except BadJSONError as error:
        return ParsedCall(name, body.strip(), f"The tool call cannot be read: {error}. {_EXPECTED}")
