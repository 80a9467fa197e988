"""The format of DeepSeek-V3.1: the name and the arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format

from agentrl.chat.parsers.marked.deepseek import CALL, SECTION, SEPARATOR


def write(content: str, calls: Sequence[Call]) -> str:
    written = [
        f"{CALL[0]}{name}{SEPARATOR}{json.dumps(arguments, ensure_ascii=False)}{CALL[1]}" for name, arguments in calls
    ]
    return content + SECTION[0] + "".join(written) + SECTION[1]


def fits(call: Call) -> bool:
    return CALL[0] not in json.dumps(call, ensure_ascii=False)


MARKS = (*SECTION, *CALL, SEPARATOR, f"{CALL[0]}f{SEPARATOR}", f"{SECTION[0]}{CALL[0]}f{SEPARATOR}{{")
FORMAT = Format("deepseek_v3.1", write, marks=MARKS, fits=fits)
