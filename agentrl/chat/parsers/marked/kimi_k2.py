"""Parser of the format of Kimi K2: a name with the number of the call, and the arguments.

<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{"argument": "value"}
<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from agentrl.chat.parsers.marked.marked_calls import NAME, MarkedCallsParser, Marks

SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")
ARGUMENTS = "<|tool_call_argument_begin|>"


class KimiK2Parser(MarkedCallsParser):
    """Parser of the calls of Kimi K2.

    `functions.name:0` is the id of a call. The template writes the id before the tool's answer.
    """

    marks = Marks(
        SECTION,
        CALL,
        head=re.compile(rf"\s*(?P<id>(?:functions\.)?{NAME}(?::\d{{1,9}})?)\s*{re.escape(ARGUMENTS)}"),
        tail=re.compile(r"\s*"),
        expected=f'Write {SECTION[0]}{CALL[0]}functions.name:0{ARGUMENTS}{{"argument": "value"}}{CALL[1]}{SECTION[1]}',
    )
