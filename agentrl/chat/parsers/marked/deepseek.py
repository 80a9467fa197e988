"""Parsers of DeepSeek's formats, whose calls are between marks.

V3 and R1 write `function` and a code block:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name
```json
{"argument": "value"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 and V3.2-Exp write the name and the arguments:

<｜tool▁call▁begin｜>name<｜tool▁sep｜>{"argument": "value"}<｜tool▁call▁end｜>
"""

from __future__ import annotations

import re

from agentrl.chat.parsers.marked.marked_calls import NAME, MarkedCallsParser, Marks

SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
SEPARATOR = "<｜tool▁sep｜>"


def _written(call: str) -> str:
    return f"Write {SECTION[0]}{CALL[0]}{call}{CALL[1]}{SECTION[1]}"


class DeepSeekV3Parser(MarkedCallsParser):
    """Parser of the calls of DeepSeek-V3, DeepSeek-R1 and its distilled models."""

    marks = Marks(
        SECTION,
        CALL,
        head=re.compile(rf"\s*function\s*{SEPARATOR}\s*{NAME}\s*```(?:json)?(?=[\s{{])"),
        tail=re.compile(r"\s*```\s*"),
        expected=_written(f'function{SEPARATOR}name\n```json\n{{"argument": "value"}}\n```'),
    )


class DeepSeekV31Parser(MarkedCallsParser):
    """Parser of the calls of DeepSeek-V3.1 and DeepSeek-V3.2-Exp."""

    marks = Marks(
        SECTION,
        CALL,
        head=re.compile(rf"\s*{NAME}\s*{SEPARATOR}"),
        tail=re.compile(r"\s*"),
        expected=_written(f'name{SEPARATOR}{{"argument": "value"}}'),
    )
