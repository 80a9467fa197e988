"""The formats of Mistral's tokenizers: a JSON list, and a name before its arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parser_contract import Call, Format


def write(content: str, calls: Sequence[Call]) -> str:
    """An odd number of calls as a list, an even number in the newer way."""
    if len(calls) % 2:
        objects = [{"name": name, "arguments": arguments, "id": "zqCALL0qz"} for name, arguments in calls]
        return f"{content}[TOOL_CALLS] {json.dumps(objects, ensure_ascii=False)}"
    return content + "".join(
        f"[TOOL_CALLS]{name}{'[CALL_ID]zqCALL0qz' * number}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"
        for number, (name, arguments) in enumerate(calls)
    )


def fits(call: Call) -> bool:
    return "[TOOL_CALLS]" not in json.dumps(call)


MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_CALLS] [{", "[TOOL_CALLS]f[ARGS]{", "[THINK]", "[/THINK]")
FORMAT = Format("mistral", write, marks=MARKS, write_thoughts="[THINK]{}[/THINK]".format, fits=fits)
