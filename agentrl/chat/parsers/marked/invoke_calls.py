"""Tool calls with a tag for each argument, as DeepSeek-V3.2 and Muse Glimmer write them.

<invoke name="tool">
<parameter name="argument">value</parameter>
</invoke>

A format has its own text before `invoke` and `parameter`, and its own tags around the calls of a turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.chat.base import ParsedCall
from agentrl.chat.parsers.json_call import call_with_name, malformed_call
from agentrl.chat.parsers.json_text import BadJSONError
from agentrl.chat.parsers.parameter_types import ParameterTypes, near
from agentrl.types.messages import ToolSchema


class InvokeTags:
    """Tags of a format.

    Args:
        prefix: text before `invoke` and `parameter`.
        sections: tags that begin the calls of a turn, without brackets; the first is shown in errors.
        marked: whether a tag says if the argument is a string: `string="true"`. Other arguments are JSON.
    """

    def __init__(self, prefix: str, sections: Sequence[str], *, marked: bool = False) -> None:
        names, mark = "|".join(map(re.escape, sections)), ' string="true"' if marked else ""
        self.call = f'<{prefix}invoke name="'
        self.section = re.compile(rf"<(?:{names})>\s*")
        self.after = re.compile(rf"\s*(?:</(?:{names})>\s*)?(?:<(?:{names})>\s*)?")
        self.name = re.compile(r'([^"<>\s]{1,200})"\s*>')
        self.argument = re.compile(
            rf'\s*<{prefix}parameter name="(?P<name>[^"<>\n]{{1,200}})"(?: string="(?P<string>true|false)")?\s*>'
            rf"(?P<value>.*?)</{prefix}parameter>(?=\s*(?:<{prefix}parameter |</{prefix}invoke>))",
            re.DOTALL,
        )
        self.end = re.compile(rf"\s*</{prefix}invoke>")
        argument = f'<{prefix}parameter name="argument"{mark}>value</{prefix}parameter>'
        self.written_end = f"</{prefix}invoke>"
        self.expected = (
            f'Write <{sections[0]}>\n<{prefix}invoke name="tool">\n{argument}\n{self.written_end}\n</{sections[0]}>'
        )


class InvokeReader:
    """Reads calls between tags; all other text is content.

    - The type of a value comes from its tag, else from the tool's schema; without both, it is text.
    - A value ends at the first end tag before another argument or the end of the call. It must not contain the tag that
      begins a call, which always begins a new one. So the time is linear in the text's length.
    """

    def __init__(self, tags: InvokeTags, schemas: Sequence[ToolSchema]) -> None:
        self._tags, self._types = tags, ParameterTypes(schemas)

    def read(self, text: str) -> tuple[str, list[ParsedCall]]:
        """Return content and calls."""
        tags = self._tags
        first, *blocks = text.split(tags.call)
        section = tags.section.search(first)
        content = first[: section.start()] + first[section.end() :] if section else first
        if section and not blocks:
            error = f"No tool call follows {section[0].strip()}. {tags.expected}"
            return first[: section.start()], [ParsedCall("", first[section.end() :].strip(), error)]
        read = [self._read_block(block) for block in blocks]
        return content + "".join(rest for _, rest in read), [call for call, _ in read]

    def _read_block(self, block: str) -> tuple[ParsedCall, str]:
        """Return the call in the text after the beginning of its tag, and the text that follows the call."""
        tags, name = self._tags, ""
        try:
            if (head := tags.name.match(block)) is None:
                raise BadJSONError(f"The tool call has no name, but {near(block, 0)}.")
            name = head[1]
            arguments, position = self._types.read(name, tags.argument, block, head.end())
            if (end := tags.end.match(block, position)) is None:
                where = near(block, position)
                raise BadJSONError(f"The tool call has no {tags.written_end} after its arguments, but {where}.")
            return call_with_name(name, arguments), self._after(block, end.end())
        except BadJSONError as error:
            body, _, rest = block.partition(tags.written_end)
            return malformed_call(name, body, error, tags.expected), self._after(rest, 0)

    def _after(self, text: str, position: int) -> str:
        """The text after a call, without the tags around calls."""
        after = self._tags.after.match(text, position)
        return text[after.end() if after else position :]
