"""A tool as the toolbox drives it: its schema, the reading of arguments, a deadline, and an instance a trajectory."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self, cast

from pydantic import JsonValue, ValidationError

from agentrl.images import open_image
from agentrl.messages import Message, ToolSchema
from agentrl.offload import Lane, Offload, Running, UnavailableError
from agentrl.task import Task
from agentrl.tools.answer import Answer, read_answer
from agentrl.tools.arguments import ArgumentsError, ArgumentsReader, shorten
from agentrl.tools.base import ToolError
from agentrl.tools.function import FunctionTool
from agentrl.tools.process import ProcessPool, Taking

if TYPE_CHECKING:
    from PIL.Image import Image

_START_TIMEOUT_S = 120.0
"""How long a tool's process may take to import its code, apart from the call's own time."""


@dataclass(slots=True)
class AgentData:
    """What a tool whose `execute` takes `agent_data` is told about the rollout that calls it.

    Attributes:
        images: the bytes of the rollout's images, by their names in `messages`, in the order they came.
    """

    task: Task
    messages: list[Message]
    request_id: str
    images: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def image_data(self) -> list[Image]:
        """The same as Pillow images."""
        return [open_image(data) for data in self.images.values()]

    @property
    def tools_kwargs(self) -> Mapping[str, Mapping[str, JsonValue]]:
        """The row's arguments for its tools."""
        return self.task.tools_kwargs


class ToolInstance:
    """A tool within one trajectory. This one keeps nothing."""

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        """Serve one call; raises what the tool raises."""
        raise NotImplementedError

    async def reward(self) -> float | None:
        """The tool's own reward for the trajectory, None where it has none."""
        return None

    def begin_release(self) -> Running[None] | None:
        """Start the release, where there is something to release."""
        return None


class BoundTool:
    """What functions and classes have in common."""

    def __init__(self, schema: ToolSchema, deadline_s: float, offload: Offload) -> None:
        self.schema = schema
        self.name = schema.name
        self.deadline_s = deadline_s
        self.reader = ArgumentsReader(schema)
        self.lane = Lane(f"tool '{schema.name}'")
        self.offload = offload

    def instance(self, data: AgentData) -> ToolInstance:
        """The tool for one trajectory."""
        raise NotImplementedError

    def within(self, deadline_s: float | None) -> Self:
        """The same tool with another deadline, if one is given; all else is shared."""
        if deadline_s is None:
            return self
        other = copy(self)
        other.deadline_s = deadline_s
        return other

    def close(self) -> None:
        """Free what outlives trajectories."""


class BoundFunction(BoundTool, ToolInstance):
    """A function keeps nothing: it is its own instance."""

    def __init__(self, tool: FunctionTool, deadline_s: float, offload: Offload) -> None:
        super().__init__(tool.schema, tool.timeout_s or deadline_s, offload)
        self._tool = tool
        self._is_async = tool.is_async
        self._pool = ProcessPool(tool.function) if tool.isolation == "process" else None
        self._start_lane = Lane(f"the start of {self.lane.name}")

    def instance(self, data: AgentData) -> ToolInstance:
        """Itself."""
        return self

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        """Run the function where it belongs."""
        try:
            function = partial(self._tool.function, **self._tool.bind(arguments))
        except ValidationError as error:
            raise ArgumentsError(f"invalid arguments for '{self.name}': {_first(error)}") from None
        if self._pool is not None:
            return await self._call_process(self._pool, arguments)
        if self._is_async:
            return await self.offload.run(partial(_async_answer, function), self.deadline_s, self.lane)
        return await self.offload.run_function(partial(_answer, function), self.deadline_s, self.lane)

    async def _call_process(self, pool: ProcessPool, arguments: dict[str, JsonValue]) -> Answer:
        # starting one imports the user's code: not the call's own time
        taking = Taking(pool)
        worker = await self.offload.run_function(taking, _START_TIMEOUT_S, self._start_lane, stop=taking.give_up)
        job = partial(pool.call, worker, arguments)
        try:
            return await self.offload.run_function(job, self.deadline_s, self.lane, stop=worker.kill)
        except UnavailableError:  # it did not even begin
            pool.put(worker)
            raise

    def close(self) -> None:
        """End its processes."""
        if self._pool is not None:
            self._pool.close()


def _answer(function: Callable[[], object]) -> Answer:
    returned = function()
    if inspect.iscoroutine(returned):
        returned.close()
        raise ToolError("the tool returned a coroutine that nobody awaits: write it as async def")
    return read_answer(returned)


async def _async_answer(function: Callable[[], object]) -> Answer:
    return read_answer(await cast("Awaitable[object]", function()))


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    return shorten(f"'{'.'.join(map(str, problem['loc']))}': {problem['msg']}")
