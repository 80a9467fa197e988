"""Parser of Mistral's formats: `[TOOL_CALLS] [{...}]`, and `[TOOL_CALLS]name[ARGS]{...}` of newer tokenizers."""

from __future__ import annotations

import re

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import read_call_json, read_call_list
from agentrl.chat.parsers.json_text import BadJSONError, is_unicode, json_type, write_json
from agentrl.chat.parsers.thinking import THINK, split_thinking

TAG = "[TOOL_CALLS]"
_HEAD = re.compile(r"\s*([^\s\[\]{}]{1,200})\s*(?:\[CALL_ID\]\s*[^\s\[\]{}]{0,100}\s*)?(?:\[ARGS\])?\s*(?=\{)")
_EXPECTED_LIST = f'Write {TAG} [{{"name": "...", "arguments": {{...}}}}]'
_EXPECTED = f'Write {TAG}name[ARGS]{{"argument": "value"}}'


class MistralParser:
    """Parser of the calls after each `[TOOL_CALLS]`; all other text is content.

    - Models with a tokenizer before version 11 write a list of objects with `name` and `arguments`. Newer models write
      a name and an object. `[ARGS]` may be missing before the object, because some decoders drop it. `[CALL_ID]` and
      its id are ignored.
    - An argument must not contain `[TOOL_CALLS]`, which always begins a call. So the text after each `[TOOL_CALLS]` is
      parsed only once, and parsing time is linear in the text's length.
    - Thoughts are between `[THINK]` and `[/THINK]` (Magistral), or in `<think>`.
    """

    stop: tuple[str, ...] = ()

    def split_thinking(self, text: str) -> tuple[str, str]:
        """Split a turn into (thoughts without marks, text after the thoughts)."""
        if text.lstrip().startswith(THINK):
            return split_thinking(text)
        return split_thinking(text, "[THINK]", "[/THINK]", call=TAG)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = self.split_thinking(text)
        first, *blocks = answer.split(TAG)
        contents, calls = [first], list[ParsedCall]()
        for block in blocks:
            found, content = (
                read_call_list(block, _EXPECTED_LIST) if block.lstrip().startswith("[") else _read_call(block)
            )
            calls += found
            contents.append(content)
        return ParsedTurn("".join(contents).strip(), tuple(calls), thinking)


def _read_call(block: str) -> tuple[list[ParsedCall], str]:
    """Return a call whose name precedes its arguments, and the text after the call."""
    name = ""
    try:
        if (head := _HEAD.match(block)) is None:
            raise BadJSONError("The tool call has no name before its arguments.")
        name = head[1] if is_unicode(head[1]) else ""
        value, end = read_call_json(block, head.end())
        if not isinstance(value, dict) or not name:
            raise BadJSONError(f"The arguments of the tool call are {json_type(value)}, not an object of a named tool.")
        return [ParsedCall(name, write_json(value))], block[end:]
    except BadJSONError as error:
        return [ParsedCall(name, block.strip(), f"{error} {_EXPECTED}")], ""
