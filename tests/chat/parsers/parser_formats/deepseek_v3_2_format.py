"""The format of DeepSeek-V3.2, as the encoder in the model's repository writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from parser_contract import Call, Format, identifiers
from pydantic import JsonValue

from agentrl.chat.parsers.marked.deepseek_dsml import CALL, CALL_END

SECTION = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
END = "</｜DSML｜parameter>"


def write(content: str, calls: Sequence[Call]) -> str:
    blocks = "\n".join(_block(*call) for call in calls)
    return f"{content}\n\n{SECTION[0]}\n{blocks}\n{SECTION[1]}"


def _block(name: str, arguments: dict[str, JsonValue]) -> str:
    pairs = "\n".join(f"{_tag(key, value)}{_text(value)}{END}" for key, value in arguments.items())
    return f'{CALL}{name}">\n{pairs}\n{CALL_END}'


def _tag(key: str, value: JsonValue) -> str:
    return f'<｜DSML｜parameter name="{key}" string="{json.dumps(isinstance(value, str))}">'


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fits(call: Call) -> bool:
    """A value must not contain a new call, or its own end."""
    values = "\n".join(map(_text, call[1].values()))
    return not re.search(rf"{CALL}|{END}\s*(<｜DSML｜parameter |{CALL_END}|$)", values)


MARKS = (
    *(*SECTION, f'{CALL}f">\n', CALL, CALL_END, '<｜DSML｜parameter name="a">', END, f"1{END}\n"),
    *('<｜DSML｜parameter name="a" string="true">', '<｜DSML｜parameter name="b" string="false">'),
)
FORMAT = Format(
    "deepseek_v3.2", write, marks=MARKS, write_thoughts="<think>{}</think>".format, fits=fits, keys=identifiers
)
