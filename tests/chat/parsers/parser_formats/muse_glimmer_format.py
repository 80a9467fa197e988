"""The format of Muse Glimmer: messages with a recipient, and calls in XML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from parser_contract import Call, Format, identifiers
from pydantic import JsonValue

from agentrl.chat.parsers.marked.muse_glimmer import END, MESSAGE, START

NEXT = f"{END}{START}assistant"


def write(content: str, calls: Sequence[Call]) -> str:
    said = f" to=user{MESSAGE}{content}{NEXT}" if content else ""
    return said + NEXT.join(f" to={name}{MESSAGE}{_block(name, arguments)}" for name, arguments in calls)


def write_in_thoughts(content: str, calls: Sequence[Call]) -> str:
    return content + "".join(f" to={name}{_block(name, arguments)}" for name, arguments in calls)


def _block(name: str, arguments: dict[str, JsonValue]) -> str:
    pairs = [f'<atem:parameter name="{key}">{_value(value)}</atem:parameter>\n' for key, value in arguments.items()]
    invoke = f'<atem:invoke name="{name}">\n{"".join(pairs)}</atem:invoke>'
    return f"<atem:function_calls>\n{invoke}\n</atem:function_calls>"


def _value(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fits(call: Call) -> bool:
    values = "\n".join(map(_value, call[1].values()))
    return not re.search(r"<\|(eom|eot|start)\|>|</atem:parameter>", values)


MARKS = (
    *(START, MESSAGE, END, "<|eot|>", NEXT, " to=f", " to=self", f" to=user{MESSAGE}", f" to=f{MESSAGE}"),
    *("<atem:function_calls>", '<atem:invoke name="f">', '<atem:parameter name="a">', "</atem:parameter>"),
    *("</atem:invoke>", "</atem:function_calls>", f' to=f{MESSAGE}<atem:function_calls><atem:invoke name="f">'),
)
FORMAT = Format(
    "muse_glimmer",
    write,
    marks=MARKS,
    write_thoughts=f" to=self{MESSAGE}{{}}{NEXT}".format,
    write_in_thoughts=write_in_thoughts,
    fits=fits,
    keys=identifiers,
    typed=True,
)
