"""A tool of an MCP server."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.concurrency import Offload, Running
from agentrl.tools.binding import AgentData, BindsItself, BoundTool, ToolInstance
from agentrl.tools.mcp.connections import McpConnections
from agentrl.tools.mcp.entries import McpOptions
from agentrl.tools.mcp.schemas import checked_schema
from agentrl.tools.result import Answer
from agentrl.types.messages import ToolSchema


@dataclass(frozen=True)
class McpTool(BindsItself):
    """A tool of an MCP server, with the connections of the run.

    Attributes:
        remote_name: name of the tool on the server, without the prefix of the YAML entry.
        server: position of the server in `connections`.
    """

    schema: ToolSchema
    remote_name: str
    server: int
    options: McpOptions
    connections: McpConnections

    @property
    def name(self) -> str:
        """Name by which the model calls the tool."""
        return self.schema.name

    def bound(self, deadline_s: float, offload: Offload) -> BoundTool:
        """Return the tool for the toolbox."""
        return BoundMcpTool(self, self.options.timeout_s or deadline_s, offload)


class BoundMcpTool(BoundTool):
    """A bound `McpTool`. The timeout of a call does not include the time until its session is open."""

    def __init__(self, tool: McpTool, deadline_s: float, offload: Offload) -> None:
        super().__init__(tool.schema, deadline_s, offload, checked_schema(tool.schema))
        self.deterministic = tool.options.deterministic
        self.tool = tool
        self.shared = tool.connections

    def instance(self, data: AgentData) -> ToolInstance:
        """Return the tool in the session of this rollout."""
        return _InSession(self, data.request_id)


class _InSession(ToolInstance):
    def __init__(self, bound: BoundMcpTool, owner: str) -> None:
        self._bound, self._owner = bound, owner

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        tool = self._bound.tool
        return await tool.connections.call(
            tool.server, self._owner, tool.remote_name, arguments, self._bound.deadline_s
        )

    def begin_release(self) -> Running[None] | None:
        self._bound.tool.connections.release(self._owner)
        return None
