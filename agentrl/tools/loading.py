"""Loads tools from YAML (verl's format or the short form) and from a Python file of `@tool` functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, PositiveFloat

from agentrl.config.base import Section
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import AgentRLError, ConfigError, suggestion
from agentrl.registry import load_module, load_object, make_importable
from agentrl.sandboxes.pool import SandboxPool
from agentrl.tools.base import BaseTool
from agentrl.tools.binding import BindsItself
from agentrl.tools.environment_servers.bound import ServerEnvironment
from agentrl.tools.environment_servers.loading import load_server
from agentrl.tools.environment_servers.options import server_name
from agentrl.tools.environments.bound import Environment
from agentrl.tools.environments.spec import load_environment
from agentrl.tools.function import TOOLS as FUNCTIONS
from agentrl.tools.function import FunctionTool, as_tool
from agentrl.tools.mcp.loading import mcp_tools
from agentrl.tools.sandbox_tools import SANDBOX_TOOLS
from agentrl.tools.search.tool import KEYS as SEARCH_KEYS
from agentrl.tools.search.tool import search_tool
from agentrl.tools.verl_sandbox import fusion_tool
from agentrl.types.messages import FunctionSchema, ToolSchema
from agentrl.utils.user_code import format_error
from agentrl.utils.verl_classes import SANDBOX_FUSION_TOOL, TOOLS, replaced
from agentrl.utils.yaml_list import check_keys, entry_errors, read_listing

AnyLoaded = BaseTool | FunctionTool | BindsItself
AnyConfigured = AnyLoaded | Environment | ServerEnvironment
_CLASS_KEYS = frozenset({"class_name", "config", "tool_schema"})


def load_tools(multi_turn: MultiTurnConfig) -> list[AnyConfigured]:
    """Load the functions of the Python file, the tools of the YAML file, and the environment, in this order."""
    tools: list[AnyLoaded] = []
    # loaded first, so that the YAML file can name functions of the Python file
    if multi_turn.function_tool_path is not None:
        tools += functions_of(multi_turn.function_tool_path)
    if multi_turn.tool_config_path is not None:
        tools += tools_of(multi_turn.tool_config_path, taken=[tool.name for tool in tools])
    if multi_turn.environment is None:
        return [*tools]
    return [*tools, _environment(multi_turn.environment)]


def _environment(target: str) -> Environment | ServerEnvironment:
    if (name := server_name(target)) is not None:
        return load_server(target, name)
    return Environment(load_environment(target))


def given_tools(
    tools: Iterable[Callable[..., object] | FunctionTool | BaseTool],
) -> tuple[FunctionTool | BaseTool, ...]:
    """Return the tools that a Python caller passes; functions without `@tool` become tools.

    Raises:
        ConfigError: `tools` is not a list, or an entry is neither a tool nor a typed function.
    """
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):
        raise ConfigError.keyless(f"tools must be a list of functions or tools, not {tools!r:.100}")
    return tuple(_given(tool, f"tools[{position}]") for position, tool in enumerate(tools))


def _given(tool: Callable[..., object] | FunctionTool | BaseTool, where: str) -> FunctionTool | BaseTool:
    if isinstance(tool, (FunctionTool, BaseTool)):
        return tool
    if isinstance(tool, type) or not callable(tool):
        hint = ": pass an instance of it" if isinstance(tool, type) else ""
        raise ConfigError.keyless(f"{where} must be a typed function or a tool, not {tool!r:.100}{hint}")
    with entry_errors(where):
        return as_tool(tool)


def functions_of(path: Path) -> list[FunctionTool]:
    """Return the `@tool` functions of a Python file, including imported ones.

    Raises:
        ConfigError: the file cannot be imported, or has no function marked with `@tool`.
    """
    with entry_errors("rollout.multi_turn.function_tool_path"):
        if path.suffix != ".py":
            raise ConfigError.keyless(f"'{path}' is not a Python file")
        names = vars(load_module(str(path)))
    marked = [as_tool(value) for value in names.values() if hasattr(value, "__agentrl_tool__")]
    if not marked:
        raise ConfigError.keyless(f"{path} has no function marked with @tool")
    return marked


def tools_of(path: Path, taken: Iterable[str] = ()) -> Iterator[AnyLoaded]:
    """Yield the tools of a YAML file. `taken` are the names of other tools, which the file must not use again.

    Raises:
        ConfigError: an entry is invalid; the message names file, entry and key.
    """
    names, pools = set(taken), dict[str, SandboxPool]()
    make_importable(path.parent)
    entries = read_listing(path, "tools")
    of_servers = mcp_tools(path, entries)
    for position, entry in enumerate(entries):
        with entry_errors(f"{path}: tools[{position}]"):
            tools: Sequence[AnyLoaded] = of_servers.get(position) or [_tool(entry, path.parent, pools)]
            for tool in tools:
                if (name := getattr(tool, "name", None)) in names:  # a class that does not call super() has no name yet
                    hint = ": set 'prefix'" if position in of_servers else ""
                    raise ConfigError.keyless(f"the name '{name}' is used by another tool{hint}")
                names.add(str(name))
        yield from tools


def _tool(entry: dict[str, object], folder: Path, pools: dict[str, SandboxPool]) -> AnyLoaded:
    if entry.get("class_name") == SANDBOX_FUSION_TOOL:
        return fusion_tool(entry, pools)
    if "class_name" in entry:
        return _class_tool(entry, folder)
    if entry.keys() & {*SEARCH_KEYS} or (entry.get("name") == "search" and not _registered("search", entry)):
        return search_tool(entry, folder)
    if (kind := SANDBOX_TOOLS.get(str(entry.get("name")))) and "function" not in entry:
        return kind.tool(entry, pools)
    return _function_tool(entry, folder)


def _registered(name: str, entry: dict[str, object]) -> bool:
    return "function" in entry or name in FUNCTIONS.names()


class _ShortForm(Section):
    """Entry in the short form: the `name` of a registered function, or `function: path.py:name`.

    A relative path is looked up in the folder of the YAML file, then in the working folder.
    """

    name: str | None = None
    function: str | None = None
    description: str | None = None
    parameters: dict[str, dict[str, JsonValue]] | None = None
    timeout_s: PositiveFloat | None = None
    isolation: Literal["thread", "process"] | None = None


def _function_tool(entry: dict[str, object], folder: Path) -> FunctionTool:
    check_keys(entry, _ShortForm.model_fields)
    short = _ShortForm.model_validate(entry)
    target = short.function or short.name
    if target is None:
        raise ConfigError.keyless("a tool needs 'class_name', 'function', or the 'name' of a registered function")
    function = FUNCTIONS.get(_beside(folder, target))
    if not callable(function):
        raise ConfigError.keyless(f"'{target}' is not a function")
    tool = as_tool(function)
    return replace(
        tool,
        schema=_schema_of(tool, short),
        timeout_s=short.timeout_s or tool.timeout_s,
        isolation=short.isolation or tool.isolation,
    )


def _beside(folder: Path, target: str) -> str:
    """Return `path.py:name` in the folder of the YAML file if `path.py` exists there, else `target` unchanged."""
    path = folder / target.rpartition(":")[0]
    return f"{folder / target}" if path.suffix == ".py" and path.is_file() else target


def _schema_of(tool: FunctionTool, short: _ShortForm) -> ToolSchema:
    own = tool.schema.function
    function = FunctionSchema(
        name=short.name or own.name,
        description=own.description if short.description is None else short.description,
        parameters=own.parameters if short.parameters is None else _parameters(tool, short.parameters),
    )
    return ToolSchema(function=function)


def _parameters(tool: FunctionTool, properties: dict[str, dict[str, JsonValue]]) -> dict[str, JsonValue]:
    """Build a JSON schema from the short form; parameters without a default are required."""
    taken = inspect.signature(tool.function).parameters
    for name in properties:
        if name not in taken:
            raise ConfigError.keyless(f"the function has no parameter '{name}': {suggestion(name, taken)}")
    required = [name for name, parameter in taken.items() if parameter.default is parameter.empty]
    if missing := [name for name in required if name not in properties]:
        raise ConfigError.keyless(f"the function needs '{missing[0]}', which is missing in 'parameters'")
    return {"type": "object", "properties": {**properties}, "required": [*required]}


def _class_tool(entry: dict[str, object], folder: Path) -> BaseTool:
    name, config = (
        replaced(str(entry["class_name"]), TOOLS, f"{BaseTool.__module__}.BaseTool"),
        entry.get("config") or {},
    )
    kind = config.get("type", "native") if isinstance(config, dict) else None
    check_keys(entry, _CLASS_KEYS)
    if not isinstance(config, dict) or kind != "native":
        raise ConfigError.keyless(f"'config' must be a mapping with 'type: native', not {entry.get('config')!r}")
    cls = load_object(_beside(folder, name))
    if not (isinstance(cls, type) and issubclass(cls, BaseTool)):
        raise ConfigError.keyless(f"'{name}' must be a subclass of agentrl.tools.base.BaseTool")
    return _instantiate(cls, config, entry.get("tool_schema"))


def _instantiate(cls: type[BaseTool], config: dict[str, JsonValue], schema: object) -> BaseTool:
    given = None if schema is None else ToolSchema.model_validate(schema)
    try:
        return cls(config=config, tool_schema=given)
    except AgentRLError:
        raise
    except Exception as error:  # a user's constructor may raise anything
        hint = " (no 'tool_schema' is given)" if given is None else ""
        raise ConfigError.keyless(f"{cls.__name__} failed{hint}: {format_error(error)}") from error
