"""The format that the ReAct loop teaches."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format


def write(content: str, calls: Sequence[Call]) -> str:
    actions = [f"Action: {name}\nAction Input: {json.dumps(arguments)}" for name, arguments in calls]
    return "\n".join(filter(None, [content, *actions]))


FORMAT = Format(
    "react",
    write,
    marks=("Action: f\n", "Action Input: {\n", "Observation:", "Final Answer:", "**", "- "),
)
