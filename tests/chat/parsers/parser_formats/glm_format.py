"""The format of GLM-4.5 and later."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from parser_contract import Call, Format, identifiers
from pydantic import JsonValue


def write(content: str, calls: Sequence[Call]) -> str:
    return "\n".join(filter(None, [content, *(_block(*call) for call in calls)]))


def _block(name: str, arguments: dict[str, JsonValue]) -> str:
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{_value(value)}</arg_value>\n" for key, value in arguments.items()]
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def _value(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fits(call: Call) -> bool:
    """A value must not contain a new call, or its own end."""
    values = "\n".join(map(_value, call[1].values()))
    return not re.search(r"<tool_call>|</arg_value>\s*(<arg_key>|</tool_call>|$)", values)


MARKS = (
    *("<tool_call>", "</tool_call>", "<tool_call>f\n<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    *("<arg_key>a</arg_key>", "<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value>\n", "<arg_value>1"),
)
FORMAT = Format(
    "glm",
    write,
    marks=MARKS,
    write_thoughts="\n<think>{}</think>\n".format,
    fits=fits,
    keys=identifiers,
    typed=True,
)
