"""Parser of the format of DeepSeek-V3.2 and V4, with a tag for each argument.

<｜DSML｜function_calls>
<｜DSML｜invoke name="tool">
<｜DSML｜parameter name="argument" string="true">text</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
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

CALL, CALL_END = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
_SECTION = re.compile(r"<｜DSML｜(?:function|tool)_calls>\s*")
_BETWEEN = re.compile(r"\s*(?:</｜DSML｜(?:function|tool)_calls>\s*)?(?:<｜DSML｜(?:function|tool)_calls>\s*)?")
_NAME = re.compile(r'([^"<>\s]{1,200})"\s*>')
_ARGUMENT = re.compile(
    r'\s*<｜DSML｜parameter name="(?P<name>[^"<>\n]{1,200})"(?: string="(?P<string>true|false)")?\s*>'
    rf"(?P<value>.*?)</｜DSML｜parameter>(?=\s*(?:<｜DSML｜parameter |{CALL_END}))",
    re.DOTALL,
)
_END = re.compile(rf"\s*{CALL_END}")
_EXPECTED = (
    f'Write <｜DSML｜function_calls>\n{CALL}tool">\n<｜DSML｜parameter name="argument" string="true">text'
    f"</｜DSML｜parameter>\n{CALL_END}\n</｜DSML｜function_calls>"
)


class DeepSeekV32Parser:
    """Parser of calls between tags; all other text is content.

    - Around the calls of a turn, V3.2 writes `function_calls`, and V4 writes `tool_calls`.
    - `string="true"` marks text, and `string="false"` marks JSON. Without a mark, the type comes from the tool's schema
      (see `for_tools`).
    - A value ends at the first `</｜DSML｜parameter>` that is followed by another argument or by the end of the call.
      It must not contain `<｜DSML｜invoke name="`, which always begins a new call. So each call is parsed only once,
      and parsing time is linear in the text's length.
    """

    stop: tuple[str, ...] = ()

    def __init__(self, schemas: Sequence[ToolSchema] = ()) -> None:
        self._types = ParameterTypes(schemas)

    def for_tools(self, schemas: Sequence[ToolSchema]) -> DeepSeekV32Parser:
        """Return a parser for turns in which these tools are available."""
        return DeepSeekV32Parser(schemas)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = split_thinking(text, call=CALL)
        first, *blocks = answer.split(CALL)
        content, *rest = _SECTION.split(first, maxsplit=1)
        if rest and not blocks:
            error = f"No tool call follows <｜DSML｜function_calls>. {_EXPECTED}"
            return ParsedTurn(content.strip(), (ParsedCall("", rest[0].strip(), error),), thinking)
        read = [self._read_block(block) for block in blocks]
        content = "".join([content, *rest, *(after for _, after in read)])
        return ParsedTurn(content.strip(), tuple(call for call, _ in read), thinking)

    def _read_block(self, block: str) -> tuple[ParsedCall, str]:
        """Return the call in the text after the beginning of its tag, and the content that follows the call."""
        name = ""
        try:
            if (head := _NAME.match(block)) is None:
                raise BadJSONError(f"The tool call has no name, but {near(block, 0)}.")
            name = head[1]
            arguments, position = self._types.read(name, _ARGUMENT, block, head.end())
            if (end := _END.match(block, position)) is None:
                where = near(block, position)
                raise BadJSONError(f"The tool call has no {CALL_END} after its arguments, but {where}.")
            return call_with_name(name, arguments), _BETWEEN.sub("", block[end.end() :], count=1)
        except BadJSONError as error:
            body, _, after = block.partition(CALL_END)
            return malformed_call(name, body, error, _EXPECTED), _BETWEEN.sub("", after, count=1)
