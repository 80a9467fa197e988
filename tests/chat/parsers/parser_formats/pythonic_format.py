"""The formats of LFM2 and Llama 4: a list of Python calls."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st
from parser_contract import Call, Format
from pydantic import JsonValue


def write(content: str, calls: Sequence[Call]) -> str:
    """As LFM2's template: strings in single quotes, other values as Python, and nested values as JSON."""
    written = ", ".join(f"{name}({', '.join(map(_argument, arguments.items()))})" for name, arguments in calls)
    return f"{content}<|tool_call_start|>[{written}]<|tool_call_end|>"


def _argument(pair: tuple[str, JsonValue]) -> str:
    key, value = pair
    if isinstance(value, str):
        for plain, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
            value = value.replace(plain, escaped)
        return f"{key}='{value}'"
    return f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value}"


def fits(call: Call) -> bool:
    return "<|tool_call_start|>" not in json.dumps(call)


MARKS = (
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "[f(a=",
    "\n[f(",
    "[f(a='",
    "<|tool_call_start|>[f(a=[1,",
    "<|python_start|>",
)
FORMAT = Format("pythonic", write, marks=MARKS, fits=fits, keys=st.sampled_from(["q", "count", "the_text", "x1"]))
