"""Reads tools from YAML, in verl's format or the short form, and from a Python file of `@tool` functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, JsonValue, PositiveFloat, ValidationError

from agentrl.config.base import Section
from agentrl.config.listing import check_keys, read_listing
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import ConfigError, UnknownNameError, suggestion
from agentrl.messages import FunctionSchema, ToolSchema
from agentrl.registry import load_file, load_object
from agentrl.tools.base import BaseTool
from agentrl.tools.function import TOOLS, FunctionTool, as_tool

_CLASS_KEYS = frozenset({"class_name", "config", "tool_schema"})


def load_tools(multi_turn: MultiTurnConfig) -> list[BaseTool | FunctionTool]:
    """The tools of both files, in the order they are written."""
    tools: list[BaseTool | FunctionTool] = []
    # first, so that the YAML may name the functions of this file
    if multi_turn.function_tool_path is not None:
        tools += functions_of(multi_turn.function_tool_path)
    if multi_turn.tool_config_path is not None:
        tools += tools_of(multi_turn.tool_config_path)
    return tools


def functions_of(path: Path) -> list[FunctionTool]:
    """The `@tool` functions a Python file holds, its imported ones too.

    Raises:
        ConfigError: it cannot be imported, or holds none.
    """
    try:
        names = vars(load_file(path))
    except ConfigError:
        raise
    except Exception as error:  # whatever a user's module raises
        raise ConfigError(f"cannot import '{path}': {type(error).__name__}: {error}") from error
    marked = [as_tool(value) for value in names.values() if hasattr(value, "__agentrl_tool__")]
    if not marked:
        raise ConfigError(f"{path} holds no function marked with @tool")
    return marked


def tools_of(path: Path) -> Iterator[BaseTool | FunctionTool]:
    """The tools a YAML file lists.

    Raises:
        ConfigError: names file, entry and key.
    """
    for position, entry in enumerate(read_listing(path, "tools")):
        where = f"{path}: tools[{position}]"
        try:
            yield _class_tool(entry, where) if "class_name" in entry else _function_tool(entry, path.parent)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"]))
            raise ConfigError(f"{where}: '{key}': {problem['msg']}{_near(problem, key)}") from None
        except (ConfigError, UnknownNameError) as error:
            raise ConfigError(f"{where}: {error}" if where not in str(error) else str(error)) from error


def _near(problem, key: str) -> str:  # type: ignore[no-untyped-def]  # pydantic's ErrorDetails
    return f": {suggestion(key, _ShortForm.model_fields)}" if problem["type"] == "extra_forbidden" else ""


class _ShortForm(Section):
    """A registered function, or `function: path.py:name` relative to the YAML file or the working folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    function: str | None = None
    description: str | None = None
    parameters: dict[str, dict[str, JsonValue]] | None = None
    timeout_s: PositiveFloat | None = None
    isolation: Literal["thread", "process"] | None = None


def _function_tool(entry: dict[str, object], folder: Path) -> FunctionTool:
    short = _ShortForm.model_validate(entry)
    if short.name is None and short.function is None:
        raise ConfigError("a tool needs 'class_name', 'function', or the 'name' of a registered function")
    tool = as_tool(_find(short, folder))
    told = tool.schema.function
    function = FunctionSchema(
        name=short.name or told.name,
        description=told.description if short.description is None else short.description,
        parameters=told.parameters if short.parameters is None else _parameters(tool, short.parameters),
    )
    return replace(
        tool,
        schema=ToolSchema(function=function),
        timeout_s=short.timeout_s or tool.timeout_s,
        isolation=short.isolation or tool.isolation,
    )


def _find(short: _ShortForm, folder: Path) -> Callable[..., object]:
    if short.function is None:
        return TOOLS.get(str(short.name))
    path, separator, name = short.function.rpartition(":")
    if separator and path.endswith(".py") and (folder / path).is_file():
        return load_object(f"{folder / path}:{name}")  # type: ignore[no-any-return]  # the user's function
    return TOOLS.get(short.function)


def _parameters(tool: FunctionTool, properties: dict[str, dict[str, JsonValue]]) -> dict[str, JsonValue]:
    """A JSON schema from the short form; required is what the function has no default for."""
    taken = inspect.signature(tool.function).parameters
    for name in properties:
        if name not in taken:
            raise ConfigError(f"the function takes no '{name}': {suggestion(name, taken)}")
    required = [name for name, parameter in taken.items() if parameter.default is parameter.empty]
    if missing := [name for name in required if name not in properties]:
        raise ConfigError(f"the function needs '{missing[0]}', which 'parameters' leaves out")
    return {"type": "object", "properties": {**properties}, "required": [*required]}


def _class_tool(entry: dict[str, object], where: str) -> BaseTool:
    config = entry.get("config") or {}
    kind = config.get("type", "native") if isinstance(config, dict) else None
    if kind == "mcp" or "mcp" in entry:
        raise ConfigError(f"{where}: 'type: mcp' is not in this version; wrap the server's tools in a BaseTool")
    check_keys(entry, _CLASS_KEYS, where)
    if not isinstance(config, dict) or kind != "native":
        raise ConfigError(f"{where}: 'config' must be a mapping with 'type: native', not {entry.get('config')!r}")
    name = str(entry["class_name"])
    if name.startswith("verl."):
        raise ConfigError(
            f"{where}: '{name}' belongs to verl: subclass agentrl.tools.base.BaseTool and name that class"
        )
    return _instantiate(load_object(name), config, entry.get("tool_schema"), where)


def _instantiate(cls: type[BaseTool], config: dict[str, JsonValue], schema: object, where: str) -> BaseTool:
    given = getattr(cls, "tool_schema", None) if schema is None else ToolSchema.model_validate(schema)
    try:
        # verl's classes may make their own schema in __init__ and then expect None here
        built = cls(config=config, tool_schema=given)
        built.get_openai_tool_schema()
    except ConfigError:
        raise
    except Exception as error:  # whatever a user's constructor raises
        hint = " (no 'tool_schema' is given)" if given is None else ""
        raise ConfigError(f"{where}: {cls.__name__} failed{hint}: {type(error).__name__}: {error}") from error
    return built
