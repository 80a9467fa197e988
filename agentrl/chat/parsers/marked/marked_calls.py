"""Tool calls that consist of a name and a JSON object between marks, as DeepSeek and Kimi write them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import call_with_name, malformed_call, read_call_json
from agentrl.chat.parsers.json_text import BadJSONError
from agentrl.chat.parsers.thinking import split_thinking

NAME = r"(?P<name>[^\s<>]{1,200}?)"


@dataclass(frozen=True)
class Marks:
    """Marks of a format.

    Attributes:
        section: the marks before and after the calls of a turn. Some models omit both marks.
        call: the marks before and after a call.
        head: text before the arguments of a call, with the group `name`, and the group `id` if the format has ids.
        tail: text between the arguments and the end of the call.
        expected: the right form, for error messages.
    """

    section: tuple[str, str]
    call: tuple[str, str]
    head: re.Pattern[str]
    tail: re.Pattern[str]
    expected: str


class MarkedCallsParser:
    """Parser of calls between marks; all other text is content.

    - The name comes before the arguments, which are one JSON object.
    - An argument must not contain the mark that begins a call, because this mark always begins a new call. So each call
      is parsed only once, and parsing time is linear in the text's length.
    """

    stop: tuple[str, ...] = ()
    marks: Marks

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        marks = self.marks
        thinking, answer = split_thinking(text, call=marks.call[0])
        first, *blocks = answer.split(marks.call[0])
        content, section, rest = first.partition(marks.section[0])
        if section and not blocks:
            error = f"No tool call follows {marks.section[0]}. {marks.expected}"
            return ParsedTurn(content.strip(), (ParsedCall("", rest.strip(), error),), thinking)
        contents, calls = [content, rest], list[ParsedCall]()
        for block in blocks:
            call, rest = _read_block(block, marks)
            calls.append(call)
            contents.append(rest.lstrip().removeprefix(marks.section[1]))
        return ParsedTurn("".join(contents).strip(), tuple(calls), thinking)


def _read_block(block: str, marks: Marks) -> tuple[ParsedCall, str]:
    """Return the call in the text after its first mark, and the text that follows the call."""
    name = ""
    try:
        if (head := marks.head.match(block)) is None:
            raise BadJSONError(f"The tool call does not begin with a name and its mark: {block.strip()[:20]!r}.")
        name = head["name"]
        value, end = read_call_json(block, head.end())
        tail = marks.tail.match(block, end)
        if tail is None or not block.startswith(marks.call[1], tail.end()):
            raise BadJSONError(f"The tool call is not closed after its arguments: {block[end : end + 20]!r} follows.")
        call = replace(call_with_name(name, value), call_id=head.groupdict().get("id", ""))
        return call, block[tail.end() + len(marks.call[1]) :]
    except BadJSONError as error:
        body, _, rest = block.partition(marks.call[1])
        return malformed_call(name, body, error, marks.expected), rest
