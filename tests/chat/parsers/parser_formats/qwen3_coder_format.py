"""The format of Qwen3-Coder, Qwen3.5 and Nemotron 3."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from parser_contract import Call, Format, identifiers
from pydantic import JsonValue


def write(content: str, calls: Sequence[Call]) -> str:
    blocks = [_block(*call) for call in calls]
    return "\n\n".join(filter(None, [content, "\n".join(blocks)]))


def _block(name: str, arguments: dict[str, JsonValue]) -> str:
    parameters = "".join(f"<parameter={key}>\n{_value(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _value(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def fits(call: Call) -> bool:
    """A value must not contain a new block, or its own end."""
    return not re.search(
        r"<tool_call>|</parameter>\s*(<parameter=|</function>|$)", "\n".join(map(_value, call[1].values()))
    )


MARKS = (
    *("<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>"),
    *("<tool_call><function=f><parameter=a>", "<function=", "</parameter>\n"),
)
FORMAT = Format("qwen3_coder", write, marks=MARKS, fits=fits, keys=identifiers, typed=True)
