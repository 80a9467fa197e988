"""Starts the servers of a tool YAML file once, and makes tools of what they list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcp_types import Tool

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
    reached: ReachedServer
    tools: Sequence[Tool]


def list_tools(entries: Mapping[int, McpEntry]) -> dict[int, list[McpTool]]:
    """Return the tools of each entry. All servers are stopped again.

    Args:
        entries: by position in the file.

    Raises:
        ConfigError: a server cannot be used, or a tool cannot be offered; one problem per server or tool.
    """
    wanted = [(position, server) for position, entry in entries.items() for server in entry.servers]
    workers = Workers()
    try:
        # on a thread, because an event loop may already run on this one
        listing = DaemonExecutor(workers).submit(asyncio.run, _list_all(entries, wanted))
        listed = listing.result()
    finally:
        workers.close()
    problems = [
        f"tools[{position}]: {each}"
        for (position, _), each in zip(wanted, listed, strict=True)
        if isinstance(each, str)
    ]
    reached = [each for each in listed if not isinstance(each, str)]
    if problems:
        raise ConfigError.keyless(*problems)
    return _offered(entries, [position for position, _ in wanted], reached)


async def _list_all(entries: Mapping[int, McpEntry], wanted: Sequence[tuple[int, McpServer]]) -> list[_Listed | str]:
    reaper, slots = Reaper(), asyncio.Semaphore(_MAX_AT_ONCE)

    async def one(position: int, server: McpServer) -> _Listed | str:
        async with slots:
            return await _list_one(server, entries[position].options, reaper)

    try:
        return await asyncio.gather(*(one(*each) for each in wanted))
    finally:
        await asyncio.to_thread(reaper.close)


async def _list_one(server: McpServer, options: McpOptions, reaper: Reaper) -> _Listed | str:
    session = Session(server, reaper)
    try:
        await session.open(options.start_timeout_s)
        tools = await session.list_tools(options.start_timeout_s)
        return _Listed(ReachedServer(server, options, session.handshake), tools)
    except ServerFailedError as error:
        return str(error)
    finally:
        await session.close()


def _offered(
    entries: Mapping[int, McpEntry], positions: Sequence[int], listed: Sequence[_Listed]
) -> dict[int, list[McpTool]]:
    connections = McpConnections([each.reached for each in listed])
    found: dict[int, list[McpTool]] = {position: [] for position in entries}
    problems: list[str] = []
    for number, (position, each) in enumerate(zip(positions, listed, strict=True)):
        for tool in _selected(each):
            try:
                found[position].append(_tool(tool, number, each.reached, connections))
            except SchemaRefusedError as error:
                name = each.reached.server.name
                problems.append(f"tools[{position}]: MCP server '{name}', tool '{tool.name[:100]}': {error}")
    problems += [
        problem for position, entry in entries.items() for problem in _missing(position, entry, positions, listed)
    ]
    if problems:
        raise ConfigError.keyless(*problems)
    return found


def _selected(listed: _Listed) -> list[Tool]:
    names = listed.reached.options.tools
    return [tool for tool in listed.tools if not names or tool.name in names]


def _tool(tool: Tool, server: int, reached: ReachedServer, connections: McpConnections) -> McpTool:
    options = reached.options
    schema = tool_schema(f"{options.prefix}{tool.name}", tool.description or "", tool.input_schema)
    return McpTool(schema, tool.name, server, options, connections)


def _missing(position: int, entry: McpEntry, positions: Sequence[int], listed: Sequence[_Listed]) -> list[str]:
    """Problems of an entry that selects tools which its servers do not have, or that has none."""
    offered = {
        tool.name for place, each in zip(positions, listed, strict=True) if place == position for tool in each.tools
    }
    names = ", ".join(f"'{server.name}'" for server in entry.servers)
    if not offered:
        return [f"tools[{position}]: MCP server {names} has no tools"]
    return [
        f"tools[{position}]: MCP server {names} has no tool '{name}': {suggestion(name, offered)}"
        for name in entry.options.tools
        if name not in offered
    ]
