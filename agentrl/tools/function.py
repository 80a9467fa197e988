"""A typed function as a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, overload

from pydantic import BaseModel, JsonValue

from agentrl.errors import ConfigError
from agentrl.messages import ToolSchema
from agentrl.registry import Registry
from agentrl.tools.schema import arguments_model, function_schema

F = TypeVar("F", bound=Callable[..., object])
Isolation = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function the model may call.

    Attributes:
        arguments: reads the model's arguments into the types the function declares.
        timeout_s: seconds a call may take; None takes the run's `tool_timeout_s`.
        isolation: `process` runs a plain function in a process that is killed at the deadline.
    """

    function: Callable[..., object]
    schema: ToolSchema
    arguments: type[BaseModel]
    timeout_s: float | None = None
    isolation: Isolation = "thread"

    def __post_init__(self) -> None:
        if self.isolation not in ("thread", "process"):
            raise ConfigError(f"tool '{self.name}': isolation must be thread or process, not '{self.isolation}'")
        if self.isolation == "process" and self.is_async:
            raise ConfigError(f"tool '{self.name}': isolation: process is for plain functions, this one is async")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"tool '{self.name}': timeout_s must be above 0, not {self.timeout_s}")

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        return self.schema.name

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def bind(self, arguments: Mapping[str, JsonValue]) -> dict[str, object]:
        """The keyword arguments for `function`.

        Raises:
            ValidationError: pydantic's, where they are not of the declared types.
        """
        model = self.arguments.model_validate(arguments)
        # only what was given: the function's own defaults stay its own
        fields = self.arguments.__pydantic_fields__
        return {str(fields[name].alias): getattr(model, name) for name in model.model_fields_set}


TOOLS: Registry[Callable[..., object]] = Registry("tool", {"calculator": "agentrl.tools.calculator:calculator"})
"""Functions marked with `@tool`, by name."""


@overload
def tool(name: F) -> F: ...
@overload
def tool(
    name: str | None = None,
    *,
    description: str | None = None,
    timeout_s: float | None = None,
    isolation: Isolation = "thread",
    schema: ToolSchema | dict[str, object] | None = None,
) -> Callable[[F], F]: ...
def tool(
    name: F | str | None = None,
    *,
    description: str | None = None,
    timeout_s: float | None = None,
    isolation: Isolation = "thread",
    schema: ToolSchema | dict[str, object] | None = None,
) -> F | Callable[[F], F]:
    """Offer a typed function, async or not, to the model: `@tool`, `@tool("name")` or `@tool(name=..., ...)`.

    What the model is told comes from the signature and a docstring in Google's style; `description` and `schema`
    take their place. The function may return text, a dict (shown as JSON), a ToolResponse, or a tuple (answer, reward
    of the call, metrics). It stays an ordinary function.

    Raises:
        ConfigError: a parameter without a type, or options that cannot be honoured.
    """

    def mark(function: F) -> F:
        if schema is None:
            told, arguments = function_schema(function, None if callable(name) else name, description)
        else:
            told, arguments = ToolSchema.model_validate(schema), arguments_model(function, {}, untyped=True)
        marked = FunctionTool(function, told, arguments, timeout_s, isolation)
        function.__agentrl_tool__ = marked  # type: ignore[attr-defined]  # functions take attributes
        TOOLS.register(marked.name)(function)
        return function

    return mark(name) if callable(name) else mark


function_tool = tool
"""The name that users of verl know."""


def as_tool(function: Callable[..., object]) -> FunctionTool:
    """The tool a function was marked as, or would be by a bare `@tool`."""
    marked = getattr(function, "__agentrl_tool__", None)
    return marked if isinstance(marked, FunctionTool) else FunctionTool(function, *function_schema(function))
