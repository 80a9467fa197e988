"""The format of Kimi K2: a name with the number of the call, and the arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format

from agentrl.chat.parsers.marked.kimi_k2 import ARGUMENTS, CALL, SECTION


def write(content: str, calls: Sequence[Call]) -> str:
    written = [
        f"{CALL[0]}functions.{name}:{number}{ARGUMENTS}{json.dumps(arguments, ensure_ascii=False)}{CALL[1]}"
        for number, (name, arguments) in enumerate(calls)
    ]
    return content + SECTION[0] + "".join(written) + SECTION[1]


def fits(call: Call) -> bool:
    return CALL[0] not in json.dumps(call, ensure_ascii=False)


MARKS = (*SECTION, *CALL, ARGUMENTS, f"{CALL[0]}functions.f:0{ARGUMENTS}", ":1", "functions.")
FORMAT = Format("kimi_k2", write, marks=MARKS, write_thoughts="<think>{}</think>".format, fits=fits)
