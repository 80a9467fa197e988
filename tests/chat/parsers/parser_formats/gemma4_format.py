"""The format of Gemma 4: arguments in braces, with texts between marks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format, identifiers
from pydantic import JsonValue

from agentrl.chat.parsers.marked.gemma4 import CLOSE, OPEN, QUOTE


def write(content: str, calls: Sequence[Call]) -> str:
    """As the template does, except for names in nested objects that are no identifiers: these have marks, too."""
    return "".join(f"{OPEN}call:{name}{{{_pairs(arguments)}}}{CLOSE}" for name, arguments in calls) + content


def _pairs(arguments: dict[str, JsonValue]) -> str:
    return ",".join(f"{key}:{_value(value)}" for key, value in arguments.items())


def _value(value: JsonValue) -> str:
    if isinstance(value, str):
        return QUOTE + value + QUOTE
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_key(key)}:{_value(child)}' for key, child in value.items())}}}"
    return json.dumps(value)


def _key(key: str) -> str:
    return key if key.isidentifier() else _value(key)


def fits(call: Call) -> bool:
    text = json.dumps(call)
    return not any(mark in text for mark in (OPEN, json.dumps(QUOTE)[1:-1], "<|channel>"))


MARKS = (
    *(OPEN, CLOSE, QUOTE, "<|channel>thought\n", "<channel|>", f"{OPEN}call:f{{a:", f"{OPEN}call:f{{a:{QUOTE}"),
    *("call:f{", "{a:", ",b:", f"{QUOTE}x{QUOTE}", "<|channel>", f"{OPEN}call:f{{a:[1,"),
)
FORMAT = Format(
    "gemma4",
    write,
    marks=MARKS,
    write_thoughts="<|channel>thought\n{}\n<channel|>".format,
    fits=fits,
    keys=identifiers,
)
