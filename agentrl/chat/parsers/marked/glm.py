"""Parser of the format of GLM-4.5 and later.

<tool_call>name
<arg_key>argument</arg_key>
<arg_value>value</arg_value>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_call import call_with_name, malformed_call
from agentrl.chat.parsers.json_text import BadJSONError
from agentrl.chat.parsers.parameter_types import ParameterTypes, near
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.types.messages import ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(rf"\s*([^\s<>{{}}]{{1,200}})(?=\s*(?:<arg_key>|{CLOSE}))")
_ARGUMENT = re.compile(
    r"\s*<arg_key>(?P<name>[^<>\n]{1,200})</arg_key>"
    rf"\s*<arg_value>(?P<value>.*?)</arg_value>(?=\s*(?:<arg_key>|{CLOSE}))",
    re.DOTALL,
)
_END = re.compile(rf"\s*{CLOSE}")
_EXPECTED = f"Write {OPEN}name\n<arg_key>argument</arg_key>\n<arg_value>value</arg_value>\n{CLOSE}"


class GlmParser:
    """Parser of `<tool_call>` blocks with a name, `<arg_key>` and `<arg_value>`; all other text is content.

    - A value is the text between its tags. Its type comes from the tool's schema (see `for_tools`); without a schema,
      it is text. Line breaks between tags may be missing (GLM-4.7).
    - A value ends at the first `</arg_value>` that is followed by another argument or by the end of the call. It must
      not contain `<tool_call>`, which always starts a new call. So each call is parsed only once, and parsing time is
      linear in the text's length.
    """

    stop: tuple[str, ...] = ()

    def __init__(self, schemas: Sequence[ToolSchema] = ()) -> None:
        self._types = ParameterTypes(schemas)

    def for_tools(self, schemas: Sequence[ToolSchema]) -> GlmParser:
        """Return a parser for turns in which these tools are available."""
        return GlmParser(schemas)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = split_thinking(text, call=OPEN)
        content, *blocks = answer.split(OPEN)
        read = [self._read_block(block) for block in blocks]
        content += "".join(rest for _, rest in read)
        return ParsedTurn(content.strip(), tuple(call for call, _ in read), thinking)

    def _read_block(self, block: str) -> tuple[ParsedCall, str]:
        """Return the call in the text after `<tool_call>`, and the text that follows the call."""
        name = ""
        try:
            if (head := _NAME.match(block)) is None:
                raise BadJSONError(f"The tool call does not begin with a name, but with {near(block, 0)}.")
            name = head[1]
            arguments, position = self._types.read(name, _ARGUMENT, block, head.end())
            if (end := _END.match(block, position)) is None:
                raise BadJSONError(f"The tool call has no {CLOSE} after its arguments, but {near(block, position)}.")
            return call_with_name(name, arguments), block[end.end() :]
        except BadJSONError as error:
            body, _, rest = block.partition(CLOSE)
            return malformed_call(name, body, error, _EXPECTED), rest
