"""Tools of an OpenEnv server: one tool for the server's action, or the tools that the server lists (MCP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.environment_servers.base import ServerFailedError
from agentrl.tools.environment_servers.openenv.answers import METADATA, observation_text
from agentrl.tools.environment_servers.options import OpenEnvOptions
from agentrl.tools.mcp.schemas import SchemaRefusedError, tool_schema
from agentrl.types.messages import ToolSchema

_DESCRIPTION = "Act in the environment."


@dataclass(frozen=True, slots=True)
class OpenEnvTools:
    """The tools of a server. Converts calls to actions, and observations to text.

    Attributes:
        listed: whether the server lists tools; if it does, each action names one of these tools.
        field: field of an observation that the model reads; None: all fields.
    """

    schemas: Sequence[ToolSchema]
    listed: bool
    field: str | None

    def action(self, tool: str, arguments: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """Return the action of a call."""
        return {"type": "call_tool", "tool_name": tool, "arguments": {**arguments}} if self.listed else arguments

    def text(self, observation: Mapping[str, JsonValue]) -> str:
        """Return the text for the model after reset; "" if a server that lists tools sends an empty observation."""
        return "" if self.listed and not observation else observation_text(observation, self.field)

    def answer(self, observation: Mapping[str, JsonValue]) -> str:
        """Return the text for the model after an action.

        Raises:
            ToolError: a listed tool failed.
            InfraError: the server could not run a listed tool.
        """
        if not self.listed or self.field is not None:
            return observation_text(observation, self.field)
        if isinstance(error := observation.get("error"), dict):
            text = str(error.get("message"))[:1000]
            raise InfraError(text) if error.get("error_type") == "transport_error" else ToolError(text)
        return _result_text(observation.get("result"))


def _result_text(result: JsonValue) -> str:
    """Return the text of an MCP result: the texts in `content`; without a text there, the complete result."""
    if isinstance(result, dict):
        parts = result.get("content")
        texts = (
            [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            if (isinstance(parts, list))
            else []
        )
        text = "\n".join(map(str, texts)) or observation_text(result, None)
        if result.get("is_error") or result.get("isError"):
            raise ToolError(text)
        return text
    return observation_text({"result": result}, "result")


def lists_tools(action: Mapping[str, JsonValue]) -> bool:
    """Whether the server lists tools. If it does, the action's schema has the fields of a tool call."""
    properties = action.get("properties")
    return isinstance(properties, dict) and {"tool_name", "arguments"} <= properties.keys()


def action_tool(action: Mapping[str, JsonValue], options: OpenEnvOptions) -> ToolSchema:
    """Return the tool whose arguments are the fields of the action.

    Raises:
        ServerFailedError: the schema cannot be offered.
    """
    properties = action.get("properties")
    fields = (
        {name: schema for name, schema in properties.items() if name != METADATA}
        if (isinstance(properties, dict))
        else {}
    )
    if not fields:
        raise ServerFailedError("its action has no fields")
    parameters = {**{key: value for key, value in action.items() if key != "description"}, "properties": fields}
    description = action.get("description")
    return _offered(options.tool, options.description or description or _DESCRIPTION, parameters)


def listed_tools(tools: JsonValue) -> list[ToolSchema]:
    """Return the tools that a server lists.

    Raises:
        ServerFailedError: the list, or a tool in it, cannot be offered.
    """
    if not isinstance(tools, list) or not tools:
        raise ServerFailedError(f"expected a list of tools, it sent {tools!r:.100}")
    return [_listed(tool) for tool in tools]


def _listed(tool: JsonValue) -> ToolSchema:
    if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
        raise ServerFailedError(f"expected a tool with 'name' and 'input_schema', it sent {tool!r:.100}")
    return _offered(str(tool.get("name")), tool.get("description"), tool["input_schema"])


def _offered(name: str, description: JsonValue, parameters: JsonValue) -> ToolSchema:
    assert isinstance(parameters, dict)  # checked by the callers
    try:
        return tool_schema(name, str(description or ""), parameters)
    except SchemaRefusedError as error:
        raise ServerFailedError(f"tool '{name[:100]}' cannot be offered: {error}") from None
