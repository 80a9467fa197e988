"""A typed function as a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, overload

from pydantic import BaseModel, JsonValue

from agentrl.errors import ConfigError
from agentrl.registry import Registry
from agentrl.tools.schema import arguments_model, function_schema
from agentrl.types.messages import ToolSchema

F = TypeVar("F", bound=Callable[..., object])
Isolation = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that the model may call.

    Attributes:
        arguments: converts the model's arguments to the types that the function declares.
        timeout_s: timeout of a call in seconds; None: the run's `tool_timeout_s`.
        isolation: with `process`, the function runs in a separate process, which is killed at the timeout. Async
            functions cannot have the isolation `process`.
        retries: maximum number of repetitions of a call that raised `InfraError`; the pause before a repetition doubles
            each time, up to 5 seconds.
        deterministic: whether the same calls return the same answers. If not, the run may not be reproducible.
    """

    function: Callable[..., object]
    schema: ToolSchema
    arguments: type[BaseModel]
    timeout_s: float | None = None
    isolation: Isolation = "thread"
    retries: int = 0
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.isolation not in ("thread", "process"):
            raise ConfigError.keyless(
                f"tool '{self.name}': isolation must be thread or process, not '{self.isolation}'"
            )
        if self.isolation == "process" and self.is_async:
            raise ConfigError.keyless(
                f"tool '{self.name}': isolation: process is for plain functions, this one is async"
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError.keyless(f"tool '{self.name}': timeout_s must be above 0, not {self.timeout_s}")
        check_retries(self.name, self.retries)

    @property
    def name(self) -> str:
        """Name by which the model calls the function."""
        return self.schema.name

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def bind(self, arguments: Mapping[str, JsonValue]) -> dict[str, object]:
        """Return the keyword arguments for `function`.

        Raises:
            ValidationError: the arguments do not have the declared types (pydantic's error).
        """
        model = self.arguments.model_validate(arguments)
        # only the arguments of the call, so that the function's own defaults apply
        fields = self.arguments.__pydantic_fields__
        return {str(fields[name].alias): getattr(model, name) for name in model.model_fields_set}


def check_retries(name: str, retries: object) -> int:
    """Return `retries`; raise `ConfigError` unless it is an integer of 0 or more."""
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise ConfigError.keyless(f"tool '{name}': retries must be an integer of 0 or more, not {retries!r}")
    return retries


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
    retries: int = 0,
    deterministic: bool = False,
    schema: ToolSchema | dict[str, object] | None = None,
) -> Callable[[F], F]: ...
def tool(
    name: F | str | None = None,
    *,
    description: str | None = None,
    timeout_s: float | None = None,
    isolation: Isolation = "thread",
    retries: int = 0,
    deterministic: bool = False,
    schema: ToolSchema | dict[str, object] | None = None,
) -> F | Callable[[F], F]:
    """Convert a typed function (sync or async) to a tool: `@tool`, `@tool("name")` or `@tool(name=..., ...)`.

    The model sees the signature and the docstring (Google style). `description` replaces the docstring's text about the
    function, and `schema` replaces the complete schema. The function may return text, a dict (shown as JSON), a
    ToolResponse, or a tuple (answer, reward of the call, metrics). The function can still be called directly.

    Raises:
        ConfigError: a parameter has no type although `schema` is not given, or an option does not fit the function.
    """

    def mark(function: F) -> F:
        if schema is None:
            tool_schema, arguments = function_schema(function, None if callable(name) else name, description)
        else:
            tool_schema, arguments = ToolSchema.model_validate(schema), arguments_model(function, {}, untyped=True)
        marked = FunctionTool(function, tool_schema, arguments, timeout_s, isolation, retries, deterministic)
        function.__agentrl_tool__ = marked  # type: ignore[attr-defined]  # functions accept attributes
        TOOLS.register(marked.name)(function)
        return function

    return mark(name) if callable(name) else mark


function_tool = tool
"""verl's name for `tool`."""


def as_tool(function: Callable[..., object]) -> FunctionTool:
    """Return the tool of a function. A function without `@tool` is converted as if it had a plain `@tool`."""
    marked = getattr(function, "__agentrl_tool__", None)
    return marked if isinstance(marked, FunctionTool) else FunctionTool(function, *function_schema(function))
