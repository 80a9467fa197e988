"""Schemas of a resources server's tools, read from a dataset of NeMo-Gym or from a list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.tools.environment_servers.base import ServerFailedError
from agentrl.tools.environment_servers.nemo_gym.responses import PARAMS
from agentrl.tools.mcp.schemas import SchemaRefusedError, tool_schema
from agentrl.types.messages import ToolSchema

RESERVED = frozenset({"seed_session", "verify", "aggregate_metrics", "mcp"})
"""Names of a resources server's own endpoints."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_tools(path: Path) -> list[ToolSchema]:
    """Return the tools in `path`: JSONL rows with `responses_create_params.tools`, or a JSON list of tools.

    Raises:
        ServerFailedError: the file has no tools, a tool cannot be offered, or rows describe a tool differently.
    """
    found: dict[str, ToolSchema] = {}
    for place, tool in _tools(path):
        try:
            schema = _schema(tool)
        except SchemaRefusedError as error:
            raise ServerFailedError(f"{place}: a tool cannot be offered: {error}") from None
        if schema.name in RESERVED:
            raise ServerFailedError(f"{place}: '{schema.name}' is an endpoint of the server, not a tool")
        if found.setdefault(schema.name, schema) != schema:
            raise ServerFailedError(f"{place}: tool '{schema.name}' has another schema than in an earlier row")
    if not found:
        raise ServerFailedError(f"{path} has no tools: remove 'tools' if the server has none")
    return [*found.values()]


def _tools(path: Path) -> Iterator[tuple[str, JsonValue]]:
    """Yield (file and line of the tool, tool)."""
    if path.suffix == ".json":
        yield from ((str(path), tool) for tool in _list(_parsed(path.read_text(encoding="utf-8"), str(path))))
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{path} line {number}"
            row = _parsed(line, place) if line.strip() else None
            params = row.get(PARAMS) if isinstance(row, dict) else None
            yield from ((place, tool) for tool in _list(params.get("tools") if isinstance(params, dict) else None))


def _parsed(text: str, place: str) -> JsonValue:
    try:
        return read_json(text)
    except UnreadableAnswerError as error:
        raise ServerFailedError(f"{place}: {error}") from None


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _schema(tool: JsonValue) -> ToolSchema:
    # the function may be wrapped in an object with the key 'function'
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise SchemaRefusedError(f"expected an object with 'name' and 'parameters', not {tool!r:.100}")
    if not _NAME.fullmatch(str(function["name"])):
        raise SchemaRefusedError(f"the name {function['name']!r:.100} cannot be part of an address")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise SchemaRefusedError(f"'parameters' must be an object, not {parameters!r:.100}")
    return tool_schema(str(function["name"]), str(function.get("description") or ""), parameters)
