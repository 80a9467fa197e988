"""Starts the servers of a tool YAML file once, and creates tools from the lists that they send."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcp.types import Tool

from agentrl.concurrency.threads import DaemonExecutor, Workers
from agentrl.errors import ConfigError, suggestion
from agentrl.tools.mcp.connections import McpConnections
from agentrl.tools.mcp.entries import McpEntry, McpOptions
from agentrl.tools.mcp.reaper import Reaper
from agentrl.tools.mcp.schemas import SchemaRefusedError, tool_schema
from agentrl.tools.mcp.servers import McpServer
from agentrl.tools.mcp.session import ServerFailedError, Session
from agentrl.tools.mcp.sessions import ReachedServer
from agentrl.tools.mcp.tool import McpTool

_MAX_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Listed:
    """The tools of a server; `position` is the position of the server's entry in the file."""

    position: int
    reached: ReachedServer
    names: Sequence[str]

    @property
    def where(self) -> str:
        return f"tools[{self.position}]: MCP server '{self.reached.server.name}'"


def list_tools(entries: Mapping[int, McpEntry]) -> dict[int, list[McpTool]]:
    """Return a mapping: position of an entry -> the entry's tools. All servers are stopped at the end.

    Args:
        entries: position in the file -> entry.

    Raises:
        ConfigError: a server cannot be used, or a tool cannot be offered; one problem per server or tool.
    """
    workers = Workers()
    try:
        # on another thread, because an event loop may already run on the current thread
        answers = DaemonExecutor(workers).submit(asyncio.run, _list_all(entries)).result()
    finally:
        workers.close()
    if problems := [answer for answer in answers if isinstance(answer, str)]:
        raise ConfigError.keyless(*problems)
    listed = [answer for answer in answers if not isinstance(answer, str)]
    if problems := [*_missing(entries, listed)]:
        raise ConfigError.keyless(*problems)
    return _offered(entries, listed)


async def _list_all(entries: Mapping[int, McpEntry]) -> list[_Listed | str]:
    reaper, slots = Reaper(), asyncio.Semaphore(_MAX_AT_ONCE)

    async def one(position: int, server: McpServer) -> _Listed | str:
        async with slots:
            return await _list_one(position, server, entries[position].options, reaper)

    try:
        wanted = [(position, server) for position, entry in entries.items() for server in entry.servers]
        return await asyncio.gather(*(one(*each) for each in wanted))
    finally:
        await asyncio.to_thread(reaper.close)


async def _list_one(position: int, server: McpServer, options: McpOptions, reaper: Reaper) -> _Listed | str:
    session = Session(server, reaper)
    try:
        await session.open(options.start_timeout_s)
        tools = await session.list_tools(options.start_timeout_s)
        selected = {tool.name: tool for tool in tools if not options.tools or tool.name in options.tools}
        reached = ReachedServer(server, options, session.handshake, selected)
        return _Listed(position, reached, [tool.name for tool in tools])
    except ServerFailedError as error:
        return f"tools[{position}]: {error}"
    finally:
        await session.close()


def _missing(entries: Mapping[int, McpEntry], listed: Sequence[_Listed]) -> Iterator[str]:
    """Yield a problem for each server without tools, and for each selected tool that is missing or listed twice."""
    for each in listed:
        if not each.names:
            yield f"{each.where} has no tools"
        for name, number in Counter(each.names).items():
            if number > 1 and name in each.reached.tools:
                yield f"{each.where}, tool '{name[:100]}': it is listed {number} times"
    for position, entry in entries.items():
        offered = {name for each in listed if each.position == position for name in each.names}
        servers = ", ".join(f"'{server.name}'" for server in entry.servers)
        for name in entry.options.tools if offered else ():
            if name not in offered:
                yield f"tools[{position}]: MCP server {servers} has no tool '{name}': {suggestion(name, offered)}"


def _offered(entries: Mapping[int, McpEntry], listed: Sequence[_Listed]) -> dict[int, list[McpTool]]:
    connections = McpConnections([each.reached for each in listed])
    found: dict[int, list[McpTool]] = {position: [] for position in entries}
    problems: list[str] = []
    for number, each in enumerate(listed):
        for tool in each.reached.tools.values():
            try:
                found[each.position].append(_tool(tool, number, each.reached.options, connections))
            except SchemaRefusedError as error:
                problems.append(f"{each.where}, tool '{tool.name[:100]}': {error}")
    if problems:
        raise ConfigError.keyless(*problems)
    return found


def _tool(tool: Tool, server: int, options: McpOptions, connections: McpConnections) -> McpTool:
    schema = tool_schema(f"{options.prefix}{tool.name}", tool.description or "", tool.input_schema)
    return McpTool(schema, tool.name, server, options, connections)
