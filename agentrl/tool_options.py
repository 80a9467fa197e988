"""What a row of the dataset says of its tools, in place of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, JsonValue, NonNegativeInt, PositiveFloat, ValidationError

from agentrl.config.base import Section, one_or_many
from agentrl.errors import DataError, suggestion

_KEY = "tool_config"


class ToolOptions(Section):
    """A row's `tool_config`; what it leaves out is as configured."""

    available_tools: Annotated[tuple[str, ...] | None, BeforeValidator(one_or_many)] = None
    """Names of the tools it is offered; also known as `tool_selection`."""
    tool_format: str | None = None
    """How the model writes calls, in place of rollout.multi_turn.format."""
    max_tool_calls: NonNegativeInt | None = None
    """Most calls in a rollout, in place of rollout.multi_turn.max_tool_calls."""
    timeout: PositiveFloat | None = None
    """Seconds a call may take, in place of rollout.multi_turn.tool_timeout_s and of a tool's own."""


AS_CONFIGURED = ToolOptions()


def read_tool_options(extra_info: Mapping[str, JsonValue]) -> ToolOptions:
    """What `extra_info` holds as `tool_config`, and as `tool_selection`, verl's name for its `available_tools`.

    Raises:
        DataError: an unknown key, with the nearest one; a wrong value; two selections that differ.
    """
    config, selection = extra_info.get(_KEY), extra_info.get("tool_selection")
    if config is None and selection is None:
        return AS_CONFIGURED
    options = _read({} if config is None else config, _KEY)
    if selection is None:
        return options
    selected = _read({"available_tools": selection}, "tool_selection")
    if options.available_tools not in (None, selected.available_tools):
        raise DataError(f"'{_KEY}.available_tools' and 'tool_selection' name different tools")
    return options.model_copy(update={"available_tools": selected.available_tools})


def _read(value: JsonValue, name: str) -> ToolOptions:
    try:
        return ToolOptions.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
    key = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        raise DataError(f"field '{name}': unknown key '{key}': {suggestion(key, ToolOptions.model_fields)}")
    where = f"{name}.{key}" if key and name == _KEY else name
    expected = {"available_tools": "a list of tool names", "tool_format": "text", "": "an object"}
    number = "a whole number, 0 or more" if key == "max_tool_calls" else "seconds above 0"
    raise DataError(f"field '{where}': expected {expected.get(key, number)}, got {problem['input']!r:.100}")
