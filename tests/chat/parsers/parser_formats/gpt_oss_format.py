"""The format of gpt-oss: messages with a channel and a recipient."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from parser_contract import Call, Format

from agentrl.chat.parsers.marked.gpt_oss import CHANNEL, MESSAGE, START

HEADERS = (
    f" to=functions.{{}}{CHANNEL}commentary json{MESSAGE}",
    f"{CHANNEL}commentary to=functions.{{}} <|constrain|>json{MESSAGE}",
)


def write_calls(calls: Sequence[Call], between: str) -> str:
    """The calls, alternately with the template's and the model's header; the last has the model's."""
    return between.join(
        HEADERS[(number + len(calls)) % 2].format(name) + json.dumps(arguments, ensure_ascii=False)
        for number, (name, arguments) in enumerate(calls)
    )


def write(content: str, calls: Sequence[Call]) -> str:
    preamble = f"{CHANNEL}commentary{MESSAGE}{content}<|end|>{START}assistant" if content else ""
    return preamble + write_calls(calls, f"<|call|>{START}assistant")


def write_in_thoughts(content: str, calls: Sequence[Call]) -> str:
    return content + write_calls(calls, "")


def fits(call: Call) -> bool:
    return not re.search(r"<\|(end|call|return|start)\|>", json.dumps(call, ensure_ascii=False))


MARKS = (
    *(CHANNEL, MESSAGE, START, "<|end|>", "<|call|>", "<|return|>", "<|constrain|>", " to=functions.f", " to="),
    *("assistant", f"{START}assistant", "commentary", "analysis", "json", HEADERS[0].format("f")),
)
FORMAT = Format(
    "gpt_oss",
    write,
    marks=MARKS,
    write_thoughts=f"{CHANNEL}analysis{MESSAGE}{{}}<|end|>{START}assistant".format,
    write_in_thoughts=write_in_thoughts,
    fits=fits,
)
