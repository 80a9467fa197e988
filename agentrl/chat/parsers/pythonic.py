"""Parser of calls written as a Python list: `[name(argument="value"), other(n=1)]` (Llama 3.2 and 4, LFM2, ToolACE)."""

from __future__ import annotations

import re

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_text import BadJSONError, write_json
from agentrl.chat.parsers.python_call import NAME, BadCallError, read_call
from agentrl.chat.parsers.python_text import BadPythonError, expect, skip_blanks
from agentrl.chat.parsers.thinking import split_thinking

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_LIST = re.compile(
    r"^[ \t]*(?:<\|python_start\|>|<\|python_tag\|>|```(?:tool_code|tool_call|python)\n)?[ \t]*\["
    rf"(?=\s*{NAME.pattern}\()",
    re.MULTILINE,
)
_AFTER_LIST = re.compile(r"\s*(?:<\|python_end\|>|```)")
_EXPECTED = 'Write [name(argument="value", other=1)]'


class PythonicParser:
    """Parser of lists of Python calls; all other text is content.

    - A list is between `<|tool_call_start|>` and `<|tool_call_end|>` (LFM2), or begins a line (Llama 4, Gemma). A list
      at the start of a line may be inside `<|python_start|>` or a code fence.
    - Arguments have names, and their values are literals: strings, numbers, True, False, None, lists, dictionaries.
      `true`, `false` and `null` are read, too, because templates write nested values as JSON. A string may contain line
      breaks. Nothing is evaluated.
    - After a mistake, the rest of the list is one malformed call. Calls before the mistake are read.
    """

    stop: tuple[str, ...] = ()

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = ("", text) if _LIST.match(text) else split_thinking(text, call=OPEN)
        first, *blocks = answer.split(OPEN)
        contents, calls, position = list[str](), list[ParsedCall](), 0
        while found := _LIST.search(first, position):
            contents.append(first[position : found.start()])
            position = _read_list(first, found.end(), calls)
            position = after.end() if (after := _AFTER_LIST.match(first, position)) else position
        contents.append(first[position:])
        contents += [_read_marked(block, calls) for block in blocks]
        return ParsedTurn("".join(contents).strip(), tuple(calls), thinking)


def _read_marked(block: str, calls: list[ParsedCall]) -> str:
    """Append the calls of the text after `<|tool_call_start|>` to `calls`; return the content after them."""
    body, _, content = block.partition(CLOSE)
    start = skip_blanks(block, 0)
    if block[start : start + 1] != "[":
        calls.append(ParsedCall("", body.strip(), f"The tool calls are not in a list. {_EXPECTED}"))
        return content
    num_before = len(calls)
    end = _read_list(block, start + 1, calls)
    if any(call.error for call in calls[num_before:]):
        return content
    return block[end:].lstrip().removeprefix(CLOSE)


def _read_list(text: str, position: int, calls: list[ParsedCall]) -> int:
    """Append the calls of a list, whose items start at `position`, to `calls`; return the end of the list."""
    while True:
        try:
            name, arguments, end = read_call(text, position)
            calls.append(ParsedCall(name, write_json(arguments)))
            found, end = expect(text, end, ",", "]")
        except (BadPythonError, BadJSONError) as error:
            name = error.name if isinstance(error, BadCallError) else ""
            body = text[position:].partition(CLOSE)[0].strip()
            calls.append(ParsedCall(name, body, f"The list of tool calls cannot be read: {error}. {_EXPECTED}"))
            return len(text)
        position = end
        if found == "]":
            return position
