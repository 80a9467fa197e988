"""Parser of the format of DeepSeek-V3.2 and V4, a tag for each argument.

<｜DSML｜function_calls>
<｜DSML｜invoke name="tool">
<｜DSML｜parameter name="argument" string="true">text</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.chat.base import ParsedTurn
from agentrl.chat.parsers.marked.invoke_calls import InvokeReader, InvokeTags
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.types.messages import ToolSchema

TAGS = InvokeTags("｜DSML｜", ("｜DSML｜function_calls", "｜DSML｜tool_calls"), marked=True)


class DeepSeekV32Parser:
    """Parser of the calls of DeepSeek-V3.2 (`function_calls`) and V4 (`tool_calls`).

    A tag without `string="true"` or `string="false"` has a value of the type in the tool's schema (see `for_tools`).
    """

    stop: tuple[str, ...] = ()

    def __init__(self, schemas: Sequence[ToolSchema] = ()) -> None:
        self._reader = InvokeReader(TAGS, schemas)

    def for_tools(self, schemas: Sequence[ToolSchema]) -> DeepSeekV32Parser:
        """Return a parser for turns in which these tools are available."""
        return DeepSeekV32Parser(schemas)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = split_thinking(text, call=TAGS.call)
        content, calls = self._reader.read(answer)
        return ParsedTurn(content.strip(), tuple(calls), thinking)
