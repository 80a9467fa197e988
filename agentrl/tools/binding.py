"""Binds a tool for the toolbox (`tools.toolbox`): schema, argument parsing, timeout, one instance per trajectory."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from agentrl.utils.seeds import derive_seed

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(slots=True)
class AgentData:
    """Data about the rollout, passed to tools that have the argument `agent_data`.

    Attributes:
        images: image name in `messages` -> bytes of the image, in the order in which the rollout received them.
        seed: derived from the rollout's seed; a tool whose random numbers come from this seed is reproducible.
        states: object that opens a state -> the state, which several tools of the rollout share.
    """

    task: Task
    messages: list[Message]
    request_id: str
    images: Mapping[str, bytes] = field(default_factory=dict)
    seed: int = 0
    states: dict[OpensState, RolloutState] = field(default_factory=dict, repr=False)

    @property
    def group_seed(self) -> int:
        """Seed that all rollouts of the task's group share."""
        return derive_seed(self.task.uid, "group")

    @property
    def environment(self) -> object | None:
        """The rollout's environment object; None if there is none."""
        found = (each.environment for each in self.states.values())
        return next((each for each in found if each is not None), None)

    @property
    def image_data(self) -> list[Image]:
        """The images as Pillow images."""
        return [open_image(data) for data in self.images.values()]

    @property
    def tools_kwargs(self) -> Mapping[str, Mapping[str, JsonValue]]:
        """The row's arguments for tools: tool name -> arguments."""
        return self.task.tools_kwargs


@runtime_checkable
class Shared(Protocol):
    """A resource that several tools of a run share, such as a pool of sandboxes."""

    def metrics(self) -> Mapping[str, float]:
        """Return totals since the start of the run, such as counts and seconds."""
        ...

    async def close(self) -> None:
        """Release everything that this object holds."""
        ...


@runtime_checkable
class Starting(Protocol):
    """A shared resource that is checked, and perhaps started, before the first rollout."""

    async def begin(self) -> None:
        """Check the resource. A second call does nothing.

        Raises:
            ConfigError: the resource cannot be used.
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
        """Start releasing resources; return None if there is nothing to wait for."""
        return None


class RolloutState(ToolInstance):
    """State that several tools of one rollout share. The state exists before the first model turn.

    Attributes:
        name: name of the state's reward.
        environment: the user's object; None before `start`.
        ended: whether the episode has ended, so that no further model turn is needed.
    """

    name: str
    environment: object | None = None
    ended: bool = False

    async def start(self) -> str | None:
        """Prepare the rollout; return text to add to the prompt, if any.

        Raises:
            DataError: the state cannot be prepared for this row.
            InfraError: the state cannot be prepared for reasons outside the row and the policy.
        """
        raise NotImplementedError


class OpensState(Protocol):
    """Opens the `RolloutState` of a rollout. `name` is also the key of the state's arguments in `tools_kwargs`."""

    name: str

    def open(self, data: AgentData) -> RolloutState | None:
        """Return the state, not yet started; None if this rollout needs no state."""
        ...

    def check_row(self, task: Task) -> None:
        """Reject a row that `start` would reject.

        Raises:
            DataError: the message names the field.
        """
        ...


class BoundTool:
    """Base class of all tools in the toolbox: a tool with its schema, argument parsing and timeout.

    Args:
        checked: schema for checking calls, if it differs from the schema that the model sees.
    """

    def __init__(
        self, schema: ToolSchema, deadline_s: float, offload: Offload, checked: ToolSchema | None = None
    ) -> None:
        self.schema = schema
        self.name = schema.name
        self.deadline_s = deadline_s
        self.reader = ArgumentsReader(checked or schema)
        self.breaker = CircuitBreaker(f"tool '{schema.name}'")
        self.retries, self.deterministic = 0, False
        self.offload = offload
        self.shared: Shared | None = None
        self.state: OpensState | None = None

    def instance(self, data: AgentData) -> ToolInstance:
        """Return the tool for one trajectory."""
        raise NotImplementedError

    def check_row(self, given: Mapping[str, JsonValue]) -> None:
        """Reject a row's arguments for this tool (`tools_kwargs.<name>`) if the tool does not accept them.

        Raises:
            DataError: an argument is not accepted; the message names field and argument.
        """

    def within(self, deadline_s: float | None) -> Self:
        """Return a copy of the tool that differs only in its timeout. For None, return the tool itself."""
        if deadline_s is None:
            return self
        other = copy(self)
        other.deadline_s = deadline_s
        return other

    def close(self) -> None:
        """Free resources that outlive trajectories."""


class BindsItself(ABC):
    """A tool that is neither a function nor a `BaseTool`, and creates its own `BoundTool`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name by which the model calls the tool."""

    @abstractmethod
    def bound(self, deadline_s: float, offload: Offload) -> BoundTool:
        """Return the tool for the toolbox; `deadline_s` is the run's timeout per call."""


class BindsSeveral(ABC):
    """An object that provides several tools.

    Attributes:
        opened_always: states that every rollout opens, even a rollout that uses none of the tools.
    """

    opened_always: Sequence[OpensState] = ()

    @abstractmethod
    def bound(self, deadline_s: float, offload: Offload) -> Sequence[BoundTool]:
        """Return the tools for the toolbox; `deadline_s` is the run's timeout per call."""


class BoundFunction(BoundTool, ToolInstance):
    """A bound function. It keeps no state, so this object is also the `ToolInstance` of every trajectory."""

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
            raise invalid_arguments(self.name, error) from None
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
    return read_answer(returned_by(function))


def returned_by(function: Callable[[], object]) -> object:
    """Call a plain function and return its result.

    Raises:
        ToolError: the result is a coroutine.
    """
    returned = function()
    if inspect.iscoroutine(returned):
        returned.close()
        raise ToolError("the tool returned a coroutine that is never awaited: declare the function as async def")
    return returned


async def _async_answer(function: Callable[[], object]) -> Answer:
    return read_answer(await cast("Awaitable[object]", function()))


def invalid_arguments(name: str, error: ValidationError) -> ArgumentsError:
    """Return the error that the model reads if its arguments do not have the declared types."""
    problem = error.errors()[0]
    why = shorten(f"'{'.'.join(map(str, problem['loc']))}': {problem['msg']}")
    return ArgumentsError(f"invalid arguments for '{name}': {why}")
