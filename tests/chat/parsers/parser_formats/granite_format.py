"""The format of Granite 3: a JSON list after a mark."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format

from agentrl.chat.parsers.marked.json_lists import END, MARK


def written_list(calls: Sequence[Call]) -> str:
    found = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return MARK + json.dumps(found, ensure_ascii=False)


def write(content: str, calls: Sequence[Call]) -> str:
    return content + written_list(calls)


def fits(call: Call) -> bool:
    return not any(mark in json.dumps(call, ensure_ascii=False) for mark in (MARK, "<tool_call>"))


MARKS = (MARK, f'{MARK}[{{"name": "f", "arguments": ', "<tool_call>[", END, "</tool_call>", "functools[", "}]")
FORMAT = Format("granite", write, marks=MARKS, fits=fits)
