"""The format of Hermes 2 Pro, Qwen2.5, Qwen3 and SmolLM3."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format


def write(content: str, calls: Sequence[Call]) -> str:
    blocks = [_block({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join(filter(None, [content, *blocks]))


def _block(call: object) -> str:
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def fits(call: Call) -> bool:
    """An argument must not contain the opening tag, which always begins the next call."""
    return "<tool_call>" not in json.dumps(call, ensure_ascii=False)


FORMAT = Format(
    "hermes",
    write,
    marks=("<tool_call>", "</tool_call>", "<tool_call>\n{", '<tool_call>{"a":"'),
    fits=fits,
)
