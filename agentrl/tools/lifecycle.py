"""verl's lifecycle of a `BaseTool`: create once a trajectory, execute, calc_reward, and release whatever happens."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from functools import partial
from uuid import uuid4

from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.messages import ToolSchema
from agentrl.offload import MAX_ABANDONED, Lane, Offload, Running
from agentrl.signatures import keyword_filter
from agentrl.tools.answer import Answer, read_answer
from agentrl.tools.base import BaseTool, ToolError
from agentrl.tools.bound import AgentData, BoundTool, ToolInstance

RELEASE_TIMEOUT_S = 10.0
"""How long a release may take; a rollout does not end before."""

_METHODS = ("create", "execute", "calc_reward", "release")


class BoundClass(BoundTool):
    """One `BaseTool` object for all trajectories, with an instance id for each."""

    def __init__(self, tool: BaseTool, deadline_s: float, offload: Offload) -> None:
        super().__init__(_schema(tool), _own_deadline(tool) or deadline_s, offload)
        self.takes = {method: keyword_filter(getattr(tool, method)) for method in _METHODS}
        # a lane of its own, closed by no row of hung calls: whatever else hangs, what was created is to be released
        self.release_lane = Lane(f"the release of tool '{self.name}'", max_in_row=MAX_ABANDONED)
        self._tool = tool

    def instance(self, data: AgentData) -> ToolInstance:
        """An instance that is created before its first call."""
        return ClassInstance(self, data)

    async def invoke(self, method: str, *arguments: object, **keywords: object) -> object:
        """Call a method with those of `keywords` it takes. Awaits what can be awaited: a user may have wrapped it."""
        returned = getattr(self._tool, method)(*arguments, **self.takes[method](keywords))
        return await returned if inspect.isawaitable(returned) else returned

    def defines(self, method: str) -> bool:
        """Whether the tool has its own version of a method."""
        return getattr(type(self._tool), method, None) is not getattr(BaseTool, method)


class ClassInstance(ToolInstance):
    """What a `BaseTool` keeps for one trajectory. Its state changes on the tools' loop thread only.

    Where a call blocked that loop and another took over, what the old one was still creating is released once it is
    there: the new one has created anew.
    """

    def __init__(self, bound: BoundClass, data: AgentData) -> None:
        self._bound = bound
        self._data = data
        self._id: str | None = None
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._creating = asyncio.Lock()

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        """`create` where that has not happened yet, then `execute`; both share the deadline."""
        bound = self._bound
        return await bound.offload.run(partial(self._execute, arguments), bound.deadline_s, bound.lane)

    async def reward(self) -> float | None:
        """`calc_reward`, where the tool defines one and was created."""
        bound = self._bound
        if self._id is None or not bound.defines("calc_reward"):
            return None
        return await bound.offload.run(self._calc_reward, bound.deadline_s, bound.lane)

    def begin_release(self) -> Running[None] | None:
        """`release` of what was created; what is still being created is released as soon as it is."""
        if not self._bound.defines("release"):
            return None
        return self._bound.offload.begin(self._bounded_release, self._bound.release_lane)

    async def _execute(self, arguments: dict[str, JsonValue]) -> Answer:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a lock belongs to one loop, and one left behind may never let go of it
            self._loop, self._creating = loop, asyncio.Lock()
        async with self._creating:
            if self._id is None:
                await self._create(loop)
        options = {**self._row("execute"), "agent_data": self._data}
        return read_answer(await self._bound.invoke("execute", self._id, arguments, **options))

    async def _create(self, loop: asyncio.AbstractEventLoop) -> None:
        row = self._row("create")
        created = await self._bound.invoke("create", **{**row, "instance_id": uuid4().hex, "create_kwargs": row})
        created_id = str(created[0] if isinstance(created, tuple) else created)
        if self._ended or loop is not self._loop:
            await self._bound.invoke("release", created_id, **self._row("release"))
            raise ToolError("the rollout went on without this call")
        self._id = created_id

    async def _calc_reward(self) -> float:
        returned = await self._bound.invoke("calc_reward", self._id, **self._row("calc_reward"))
        return read_answer(("", returned)).reward

    async def _bounded_release(self) -> None:
        # its own deadline: it goes on when whoever waits for it is cancelled
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await self._release()

    async def _release(self) -> None:
        self._ended = True
        released, self._id = self._id, None
        if released is not None:
            await self._bound.invoke("release", released, **self._row("release"))

    def _row(self, method: str) -> Mapping[str, JsonValue]:
        given = self._data.task.tools_kwargs.get(self._bound.name, {}).get(f"{method}_kwargs")
        return given if isinstance(given, dict) else {}


def _schema(tool: BaseTool) -> ToolSchema:
    schema = tool.get_openai_tool_schema()
    if not isinstance(schema, ToolSchema):
        raise ConfigError(f"{type(tool).__name__}: get_openai_tool_schema gave {schema!r:.100}, not a ToolSchema")
    return schema


def _own_deadline(tool: BaseTool) -> float | None:
    given = tool.config.get("timeout_s", tool.config.get("timeout"))
    if given is None:
        return None
    if not isinstance(given, (int, float)) or given <= 0:
        raise ConfigError(f"tool '{tool.name}': timeout_s must be a number above 0, not {given!r}")
    return given
