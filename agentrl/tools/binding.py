"""Binds a tool for the toolbox: schema, argument parsing, timeout, and one instance per trajectory."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, cast, runtime_checkable

from pydantic import JsonValue, ValidationError

from agentrl.concurrency import CircuitBreaker, Offload, Running
from agentrl.tools.arguments import ArgumentsError, ArgumentsReader, shorten
from agentrl.tools.base import ToolError
from agentrl.tools.function import FunctionTool
from agentrl.tools.process import ToolProcesses
from agentrl.tools.result import Answer, read_answer
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.task import Task
from agentrl.utils.images import open_image

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(slots=True)
class AgentData:
    """Data about the rollout, passed to tools that have the argument `agent_data`.

    Attributes:
        images: name in `messages` -> bytes of the image, in order of arrival in the rollout.
        seed: derived from the rollout's seed; a tool that draws random numbers from it is reproducible.
    """

    task: Task
    messages: list[Message]
    request_id: str
    images: Mapping[str, bytes] = field(default_factory=dict)
    seed: int = 0

    @property
    def image_data(self) -> list[Image]:
        """The images as Pillow images."""
        return [open_image(data) for data in self.images.values()]

    @property
    def tools_kwargs(self) -> Mapping[str, Mapping[str, JsonValue]]:
        """The row's arguments for its tools."""
        return self.task.tools_kwargs


class Shared(Protocol):
    """What several tools of a run share, such as a pool of sandboxes."""

    def metrics(self) -> Mapping[str, float]:
        """Counts since the start of the run."""
        ...

    async def close(self) -> None:
        """Free what it uses."""
        ...


@runtime_checkable
class Starting(Protocol):
    """Something shared that is checked, and perhaps started, before the first rollout."""

    async def begin(self) -> None:
        """Check it. A second call does nothing.

        Raises:
            ConfigError: it cannot be used.
        """
        ...


class ToolInstance:
    """A tool within one trajectory. This base class keeps no state."""

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        """Run one call. Exceptions of the tool are not caught."""
        raise NotImplementedError

    async def reward(self) -> float | None:
        """Return the tool's own reward for the trajectory; None if it has none."""
        return None

    def begin_release(self) -> Running[None] | None:
        """Start releasing resources; None if there are none."""
        return None


class BoundTool:
    """Base of bound functions and bound classes."""

    def __init__(self, schema: ToolSchema, deadline_s: float, offload: Offload) -> None:
        self.schema = schema
        self.name = schema.name
        self.deadline_s = deadline_s
        self.reader = ArgumentsReader(schema)
        self.breaker = CircuitBreaker(f"tool '{schema.name}'")
        self.retries, self.deterministic = 0, False
        self.offload = offload
        self.shared: Shared | None = None

    def instance(self, data: AgentData) -> ToolInstance:
        """The tool for one trajectory."""
        raise NotImplementedError

    def check_row(self, given: Mapping[str, JsonValue]) -> None:
        """Reject a row's arguments for this tool (`tools_kwargs.<name>`) if the tool does not accept them.

        Raises:
            DataError: an argument is not accepted; the message names field and argument.
        """

    def within(self, deadline_s: float | None) -> Self:
        """Return the tool with another timeout, if one is given. Both share everything else."""
        if deadline_s is None:
            return self
        other = copy(self)
        other.deadline_s = deadline_s
        return other

    def close(self) -> None:
        """Free resources that outlive trajectories."""


class BindsItself(ABC):
    """A tool that is neither a function nor a `BaseTool`, and brings its own bound form."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name that the model calls."""

    @abstractmethod
    def bound(self, deadline_s: float, offload: Offload) -> BoundTool:
        """Return the tool for the toolbox; `deadline_s` is the run's timeout of a call."""


class BoundFunction(BoundTool, ToolInstance):
    """A bound function. It has no state, so it is its own instance."""

    def __init__(self, tool: FunctionTool, deadline_s: float, offload: Offload) -> None:
        super().__init__(tool.schema, tool.timeout_s or deadline_s, offload)
        self._tool = tool
        self._is_async = tool.is_async
        self.retries, self.deterministic = tool.retries, tool.deterministic
        self._processes = ToolProcesses(tool.function, offload, self.breaker) if tool.isolation == "process" else None

    def instance(self, data: AgentData) -> ToolInstance:
        """Return the tool itself."""
        return self

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        """Run the function: in a child process, on the event loop of the tools, or on a thread."""
        try:
            function = partial(self._tool.function, **self._tool.bind(arguments))
        except ValidationError as error:
            raise ArgumentsError(f"invalid arguments for '{self.name}': {_first(error)}") from None
        if self._processes is not None:
            return await self._processes.call(arguments, self.deadline_s)
        if self._is_async:
            return await self.offload.run(partial(_async_answer, function), self.deadline_s, self.breaker)
        return await self.offload.run_function(partial(_answer, function), self.deadline_s, self.breaker)

    def close(self) -> None:
        """Stop the tool's processes."""
        if self._processes is not None:
            self._processes.close()


def _answer(function: Callable[[], object]) -> Answer:
    returned = function()
    if inspect.iscoroutine(returned):
        returned.close()
        raise ToolError("the tool returned a coroutine that is never awaited: declare the function as async def")
    return read_answer(returned)


async def _async_answer(function: Callable[[], object]) -> Answer:
    return read_answer(await cast("Awaitable[object]", function()))


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    return shorten(f"'{'.'.join(map(str, problem['loc']))}': {problem['msg']}")
