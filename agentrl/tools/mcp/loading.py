"""Loads the MCP entries of a tool YAML file. Imports the SDK only if there are such entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from agentrl.errors import ConfigError, install_command
from agentrl.tools.mcp.entries import McpEntry, entry_problem, is_mcp, read_entry

if TYPE_CHECKING:
    from agentrl.tools.mcp.tool import McpTool


def mcp_tools(path: Path, entries: Sequence[Mapping[str, object]]) -> dict[int, list[McpTool]]:
    """Return a mapping: position of an MCP entry in the file -> the entry's tools.

    The servers are started once to list their tools, and stopped at the end.

    Raises:
        ConfigError: entries, servers or tools are wrong; the error has one problem for each.
    """
    found: dict[int, McpEntry] = {}
    problems: list[str] = []
    for position, entry in enumerate(entries):
        if is_mcp(entry):
            try:
                found[position] = read_entry(entry, path.parent)
            except (ConfigError, ValidationError) as error:
                problems += [f"{path}: tools[{position}]: {problem}" for problem in entry_problem(error)]
    if found and find_spec("mcp") is None:
        problems.append(f"{path}: MCP servers need the package mcp: {install_command('mcp')}")
    if problems:
        raise ConfigError.keyless(*problems)
    return _listed(path, found) if found else {}


def _listed(path: Path, entries: Mapping[int, McpEntry]) -> dict[int, list[McpTool]]:
    from agentrl.tools.mcp.listing import list_tools  # imports the SDK, which takes half a second

    try:
        return list_tools(entries)
    except ConfigError as error:
        raise ConfigError.keyless(*(f"{path}: {problem.text}" for problem in error.problems)) from error
