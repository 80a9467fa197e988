"""The parser `tokenizer`, with a description of the Hermes format."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format
from response_specs import HERMES, KIND, ParserHere


def write(content: str, calls: Sequence[Call]) -> str:
    return "\n".join(filter(None, [content, *(_block(*call) for call in calls)]))


def _block(name: str, arguments: object) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def fits(call: Call) -> bool:
    return "tool_call>" not in json.dumps(call)


FORMAT = Format(
    "tokenizer",
    write,
    marks=("<tool_call>", "</tool_call>", '<tool_call>\n{"name": "f", "arguments": {'),
    fits=fits,
    make=lambda: ParserHere(KIND, HERMES),
)
