"""Rows of NeMo-Gym: the prompt and the tools are in the column `responses_create_params`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from agentrl.data.fields import FieldError, optional_object, wrong
from agentrl.data.rows.base import Row

PARAMS = "responses_create_params"
_TEXTS = ("input_text", "output_text", "text")


def with_prompt(row: Row, prompt_key: str) -> Row:
    """Add the prompt and the names of the tools to a NeMo-Gym row; return any other row unchanged.

    Raises:
        FieldError: `responses_create_params` is not a Responses API request, or has items other than texts, tool
            calls and tool outputs.
    """
    if row.get(PARAMS) is None or row.get(prompt_key) is not None:
        return row
    params = optional_object(row, PARAMS)
    names = [tool["name"] for tool in _list(params, "tools") if isinstance(tool, dict) and "name" in tool]
    selected: dict[str, JsonValue] = {} if row.get("tool_selection") else {"tool_config": {"available_tools": names}}
    return {**selected, **row, prompt_key: [*_messages(params)]}


def _list(params: Mapping[str, JsonValue], key: str) -> list[JsonValue]:
    value = params.get(key)
    if value is not None and not isinstance(value, list):
        raise wrong(f"{PARAMS}.{key}", "a list", value)
    return value or []


def _messages(params: Mapping[str, JsonValue]) -> Iterator[JsonValue]:
    if instructions := params.get("instructions"):
        yield {"role": "system", "content": instructions}
    if isinstance(given := params.get("input"), str):
        yield {"role": "user", "content": given}
    else:
        for number, item in enumerate(_list(params, "input")):
            yield _message(item, f"{PARAMS}.input[{number}]")


def _message(item: JsonValue, field: str) -> JsonValue:
    if not isinstance(item, dict):
        raise wrong(field, "an object", item)
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role"), "content": _text(item.get("content"), field)}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or {}}
        call = {"type": "function", "id": item.get("call_id"), "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        output = item.get("output")
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": text}
    raise FieldError(f"field '{field}.type': '{kind}' cannot be part of a prompt")


def _text(content: JsonValue, field: str) -> JsonValue:
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _TEXTS:
            raise FieldError(f"field '{field}.content': expected text only")
    return "".join(str(part.get("text")) for part in content if isinstance(part, dict))
