"""Entries of a tool YAML file that name MCP servers, in agentrl's short form or in verl's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, PositiveFloat, PositiveInt, ValidationError

from agentrl.config.base import Section
from agentrl.errors import ConfigError, suggestion
from agentrl.tools.mcp.servers import McpServer, server_of, servers_of_file
from agentrl.utils.yaml_list import check_keys

_VERL = "verl.tools.mcp_base_tool.MCPBaseTool"
_VERL_SEARCH = "verl.tools.mcp_search_tool.MCPSearchTool"
_VERL_TIMEOUT_S = 30.0
MAX_SESSIONS = 64

Reading = Literal["all", "search_results"]


class McpOptions(Section):
    """Options of an entry; all servers of the entry share them."""

    mcp: str | dict[str, JsonValue]
    tools: tuple[str, ...] = ()
    prefix: str = ""
    timeout_s: PositiveFloat | None = None
    start_timeout_s: PositiveFloat = 30.0
    sessions: Literal["rollout", "shared"] = "rollout"
    max_sessions: PositiveInt | None = None
    rate_limit: PositiveFloat | None = None
    deterministic: bool = False
    reading: Reading = "all"
    """Which part of an answer the model reads; set for verl's `MCPSearchTool`."""


@dataclass(frozen=True, slots=True)
class McpEntry:
    """The servers and the options of an entry."""

    servers: tuple[McpServer, ...]
    options: McpOptions


def is_mcp(entry: Mapping[str, object]) -> bool:
    """Whether an entry of a tool YAML file names MCP servers."""
    config = entry.get("config")
    return "mcp" in entry or (isinstance(config, Mapping) and config.get("type") == "mcp")


def read_entry(entry: Mapping[str, object], folder: Path) -> McpEntry:
    """Read an entry and the file that it names.

    Args:
        folder: folder of the YAML file.

    Raises:
        ConfigError: a key or a server is wrong.
    """
    if "class_name" in entry:
        entry = _from_verl(entry)
    else:
        check_keys(entry, McpOptions.model_fields.keys() - {"reading"})
    options = McpOptions.model_validate(entry)
    if options.sessions == "shared" and options.max_sessions is not None:
        raise ConfigError.keyless("'max_sessions' has no effect with 'sessions: shared'")
    return McpEntry(_servers(options.mcp, folder), options)


def _servers(given: str | dict[str, JsonValue], folder: Path) -> tuple[McpServer, ...]:
    if isinstance(given, str):
        beside = folder / Path(given).expanduser()
        return tuple(servers_of_file(beside if beside.is_file() else Path(given).expanduser()))
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError.keyless("'mcp': a server needs a 'name'")
    server = server_of(name, {key: value for key, value in given.items() if key != "name"}, folder)
    if server is None:
        raise ConfigError.keyless(f"'mcp': server '{name}' is disabled")
    return (server,)


class _VerlConfig(Section):
    type: Literal["mcp"]
    rate_limit: PositiveFloat | None = None
    timeout: PositiveFloat = _VERL_TIMEOUT_S


class _VerlServers(Section):
    mcp_servers_config_path: str
    tool_selected_list: list[str] | dict[str, JsonValue] | None = None


class _VerlEntry(Section):
    class_name: str
    config: _VerlConfig
    mcp: _VerlServers


def _from_verl(entry: Mapping[str, object]) -> dict[str, object]:
    """Return the entry in the short form."""
    name = str(entry["class_name"])
    if name not in (_VERL, _VERL_SEARCH, ""):  # verl's documentation leaves the name empty
        hint = suggestion(name, (_VERL, _VERL_SEARCH))
        raise ConfigError.keyless(f"'type: mcp' supports MCPBaseTool and MCPSearchTool, not '{name}': {hint}")
    check_keys(entry, _VerlEntry.model_fields)
    given = _VerlEntry.model_validate(entry)
    return {
        "mcp": given.mcp.mcp_servers_config_path,
        "tools": tuple(given.mcp.tool_selected_list or ()),
        "timeout_s": given.config.timeout,
        "rate_limit": given.config.rate_limit,
        "reading": "search_results" if name == _VERL_SEARCH else "all",
    }


def entry_problem(error: ValidationError | ConfigError) -> list[str]:
    """Return the problems of an entry as lines."""
    if isinstance(error, ConfigError):
        return [problem.text for problem in error.problems]
    problem = error.errors(include_input=False)[0]
    return [f"'{'.'.join(map(str, problem['loc']))}': {problem['msg']}"]
