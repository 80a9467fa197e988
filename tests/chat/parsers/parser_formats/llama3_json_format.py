"""The format of Llama 3.1, with several calls as its documentation writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format


def write(content: str, calls: Sequence[Call]) -> str:
    objects = [json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False) for name, arguments in calls]
    return "<|python_tag|>".join(filter(None, [content, "; ".join(objects)]))


def fits(call: Call) -> bool:
    return "<|python_tag|>" not in json.dumps(call)


MARKS = ("<|python_tag|>", '{"name": "f", "parameters": ', '{"name": "f", "parameters": {}};', "a.call(", ";")
FORMAT = Format("llama3_json", write, marks=MARKS, fits=fits)
