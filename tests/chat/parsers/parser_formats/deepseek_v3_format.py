"""The format of DeepSeek-V3 and R1: `function`, the name and a code block."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format

from agentrl.chat.parsers.marked.deepseek import CALL, SECTION, SEPARATOR


def write(content: str, calls: Sequence[Call]) -> str:
    written = [
        f"{CALL[0]}function{SEPARATOR}{name}\n```json\n{json.dumps(arguments, ensure_ascii=False)}\n```{CALL[1]}"
        for name, arguments in calls
    ]
    return content + SECTION[0] + "\n".join(written) + SECTION[1]


def fits(call: Call) -> bool:
    return CALL[0] not in json.dumps(call, ensure_ascii=False)


MARKS = (*SECTION, *CALL, SEPARATOR, f"{CALL[0]}function{SEPARATOR}", "f\n```json\n", "\n```", f"```{CALL[1]}")
FORMAT = Format("deepseek_v3", write, marks=MARKS, fits=fits)
