"""Parsers of calls in a JSON list after a mark, as Granite 3 and Phi-4-mini write them."""

from __future__ import annotations

import re

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import read_call_list
from agentrl.chat.parsers.thinking import split_thinking

MARK, END = "<|tool_call|>", "<|/tool_call|>"


class JSONListParser:
    """Parser of the JSON list after each mark; all other text is content.

    An argument must not contain a mark, which always begins a list. So each list is parsed only once, and parsing time
    is linear in the text's length.

    Attributes:
        begin: matches a mark before a list.
        end: text that must follow a list after `<|tool_call|>`; if this text is missing, the list was truncated.
        expected: the right form, for error messages.
    """

    stop: tuple[str, ...] = ()
    begin: re.Pattern[str]
    end: str
    expected: str

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = split_thinking(text, call=MARK)
        content, *blocks = self.begin.split(answer)
        calls = list[ParsedCall]()
        for mark, block in zip(blocks[::2], blocks[1::2], strict=True):
            found, rest = self._read_block(mark, block)
            calls += found
            content += rest
        return ParsedTurn(content.strip(), tuple(calls), thinking)

    def _read_block(self, mark: str, block: str) -> tuple[list[ParsedCall], str]:
        """Return the calls after a mark, and the text that follows them."""
        calls, rest = read_call_list(block, self.expected)
        following, end = rest.lstrip(), self.end if mark == MARK else ""
        if any(call.error for call in calls) or following.startswith(end or END) == bool(end):
            return calls, following.removeprefix(end) if end else rest
        what = f"{following[:20]!r} follows" if following else "nothing follows"
        error = f"The list of tool calls does not end as it should: {what}. {self.expected}"
        return [ParsedCall("", block.strip(), error)], ""


class GraniteParser(JSONListParser):
    """Parser of the calls of Granite 3: a list after `<|tool_call|>`, or after `<tool_call>` (3.1)."""

    begin = re.compile(r"(<\|tool_call\|>|<tool_call>(?=\s*\[))")
    end = ""
    expected = f'Write {MARK}[{{"name": "...", "arguments": {{...}}}}]'


class Phi4Parser(JSONListParser):
    """Parser of the calls of Phi-4-mini: a list between `<|tool_call|>` and `<|/tool_call|>`, or after `functools`."""

    begin = re.compile(r"(<\|tool_call\|>|^functools(?=\[))", re.MULTILINE)
    end = END
    expected = f'Write {MARK}[{{"name": "...", "arguments": {{...}}}}]{END}'
