"""Runs a `BaseTool` with verl's lifecycle: `create` once per trajectory, then `execute`, `calc_reward`, `release`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

from pydantic import JsonValue

from agentrl.concurrency import MAX_ABANDONED, CircuitBreaker, Offload, OverdueError, Running
from agentrl.errors import AgentRLError, ConfigError, DataError, suggestion
from agentrl.tools.base import BaseTool, InfraError, ToolError
from agentrl.tools.binding import AgentData, BoundTool, ToolInstance
from agentrl.tools.function import check_retries
from agentrl.tools.result import Answer, read_answer
from agentrl.types.messages import ToolSchema
from agentrl.utils.signatures import keyword_filter
from agentrl.utils.user_code import format_error

RELEASE_TIMEOUT_S = 10.0
"""Timeout in seconds of a release; a rollout waits for the release before it ends."""

_METHODS = ("create", "execute", "calc_reward", "release")
_GIVEN = ("instance_id", "create_kwargs", "agent_data", "seed")
"""Arguments of `create` that agentrl passes in every case, so the row need not have them."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class BoundClass(BoundTool):
    """One `BaseTool` object for all trajectories, with an instance id per trajectory."""

    def __init__(self, tool: BaseTool, deadline_s: float, offload: Offload) -> None:
        super().__init__(_schema(tool), _own_deadline(tool) or deadline_s, offload)
        self.takes = {method: keyword_filter(getattr(tool, method)) for method in _METHODS}
        self._parameters = {method: inspect.signature(getattr(tool, method)).parameters for method in _METHODS}
        # passed only if the signature names agent_data or seed, because **kwargs are for the row's arguments
        self.create_takes_data = "agent_data" in self._parameters["create"]
        self.takes_seed = {method for method in _METHODS if "seed" in self._parameters[method]}
        # a separate circuit breaker, so that releases still run when calls of the tool hang
        self.release_breaker = CircuitBreaker(f"the release of tool '{self.name}'", max_in_row=MAX_ABANDONED)
        self.retries = check_retries(self.name, tool.config.get("retries", 0))
        self.deterministic = tool.deterministic
        self._tool = tool

    def instance(self, data: AgentData) -> ToolInstance:
        """Return an instance, which runs the tool's `create` before its first call."""
        return ClassInstance(self, data)

    async def invoke(self, method: str, *arguments: object, **keywords: object) -> object:
        """Call a method with the keywords that it accepts. Await the result if it is awaitable."""
        returned = getattr(self._tool, method)(*arguments, **self.takes[method](keywords))
        return await returned if inspect.isawaitable(returned) else returned

    def check_row(self, given: Mapping[str, JsonValue]) -> None:
        """Check that each method accepts the row's arguments, and that `create` gets its required arguments."""
        field = f"tools_kwargs.{self.name}"
        known = [f"{method}_kwargs" for method in _METHODS]
        for key in given:
            if key not in known:
                raise DataError(f"field '{field}': unknown key '{key}': {suggestion(key, known)}")
        for method in _METHODS:
            arguments = given.get(f"{method}_kwargs") or {}
            if not isinstance(arguments, Mapping):
                raise DataError(f"field '{field}.{method}_kwargs': expected an object, got {arguments!r:.100}")
            self._check_arguments(method, arguments, f"field '{field}.{method}_kwargs': {method} of tool '{self.name}'")

    def _check_arguments(self, method: str, arguments: Mapping[str, JsonValue], where: str) -> None:
        parameters = self._parameters[method]
        if not (method == "create" and "create_kwargs" in parameters):  # create_kwargs accepts every argument
            for name in arguments:
                if not self.takes[method]({name: None}):
                    raise DataError(f"{where} does not accept '{name}': {suggestion(name, parameters)}")
        if method != "create":
            return
        for name, parameter in parameters.items():
            optional = parameter.default is not parameter.empty or parameter.kind in _VARIADIC
            if not optional and name not in {*arguments, *_GIVEN}:
                raise DataError(f"{where} needs '{name}', which the row does not have")

    def defines(self, method: str) -> bool:
        """Whether the tool overrides a method."""
        return getattr(type(self._tool), method, None) is not getattr(BaseTool, method)


class ClassInstance(ToolInstance):
    """State of a `BaseTool` for one trajectory. The state changes only on the event loop thread of the tools.

    If a call blocks that event loop, a new event loop replaces the blocked one. If `create` was still running on the
    old loop, the next call runs `create` again on the new loop, and the first instance is released once it exists.
    """

    def __init__(self, bound: BoundClass, data: AgentData) -> None:
        self._bound = bound
        self._data = data
        self._id: str | None = None
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._creating = asyncio.Lock()

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        """Run `create` before the first call, then `execute`; the timeout covers both."""
        bound = self._bound
        try:
            return await bound.offload.run(partial(self._execute, arguments), bound.deadline_s, bound.breaker)
        except OverdueError:
            if self._id is not None:
                raise
            why = f"create of tool '{bound.name}' did not end within {bound.deadline_s:g} seconds"
            raise InfraError(why) from None

    async def reward(self) -> float | None:
        """Run `calc_reward`, if the tool defines it and `create` was successful."""
        bound = self._bound
        if self._id is None or not bound.defines("calc_reward"):
            return None
        return await bound.offload.run(self._calc_reward, bound.deadline_s, bound.breaker)

    def begin_release(self) -> Running[None] | None:
        """Start `release`. An instance that is still being created is released as soon as it exists."""
        if not self._bound.defines("release"):
            return None
        return self._bound.offload.begin(self._bounded_release, self._bound.release_breaker)

    async def _execute(self, arguments: dict[str, JsonValue]) -> Answer:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a lock belongs to one event loop; a replaced loop may never release its lock
            self._loop, self._creating = loop, asyncio.Lock()
        async with self._creating:
            if self._id is None:
                await self._create(loop)
        return read_answer(await self._bound.invoke("execute", self._id, arguments, **self._options("execute")))

    async def _create(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._create_errors(row := self._row("create")):
            options = self._options("create", self._bound.create_takes_data)
            options = {**options, "instance_id": uuid4().hex, "create_kwargs": row}
            created = await self._bound.invoke("create", **options)
        created_id = str(created[0] if isinstance(created, tuple) else created)
        if self._ended or loop is not self._loop:
            await self._bound.invoke("release", created_id, **self._options("release"))
            raise ToolError("the rollout continued without this call")
        self._id = created_id

    @contextmanager
    def _create_errors(self, row: Mapping[str, JsonValue]) -> Iterator[None]:
        """Turn exceptions of `create` into a DataError, because the model did not cause them.

        InfraError and AgentRLError are not changed.
        """
        name = self._bound.name
        where = f"row {self._data.task.index}: create of tool '{name}'"
        try:
            yield
        except (AgentRLError, InfraError):
            raise
        except KeyError as error:
            if row:
                raise DataError(f"{where} raised {format_error(error)}") from error
            hint = f"but the row has no 'tools_kwargs.{name}.create_kwargs'"
            raise DataError(f"{where} needs {error}, {hint}") from error
        except Exception as error:  # a user's method may raise anything
            raise DataError(f"{where} raised {format_error(error)}") from error

    async def _calc_reward(self) -> float:
        returned = await self._bound.invoke("calc_reward", self._id, **self._options("calc_reward"))
        return read_answer(("", returned)).reward

    async def _bounded_release(self) -> None:
        # a separate timeout, because the release continues after its caller is cancelled
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await self._release()

    async def _release(self) -> None:
        self._ended = True
        released, self._id = self._id, None
        if released is not None:
            await self._bound.invoke("release", released, **self._options("release"))

    def _options(self, method: str, takes_data: bool = True) -> Mapping[str, object]:
        seed = {"seed": self._data.seed} if method in self._bound.takes_seed else {}
        data = {"agent_data": self._data} if takes_data else {}
        return {**seed, **self._row(method), **data}

    def _row(self, method: str) -> Mapping[str, JsonValue]:
        given = self._data.task.tools_kwargs.get(self._bound.name, {}).get(f"{method}_kwargs")
        return given if isinstance(given, dict) else {}


def _schema(tool: BaseTool) -> ToolSchema:
    schema = tool.get_openai_tool_schema()
    if not isinstance(schema, ToolSchema):
        raise ConfigError.keyless(
            f"{type(tool).__name__}: get_openai_tool_schema returned {schema!r:.100}, not a ToolSchema"
        )
    return schema


def _own_deadline(tool: BaseTool) -> float | None:
    given = tool.config.get("timeout_s", tool.config.get("timeout"))
    if given is None:
        return None
    if not isinstance(given, (int, float)) or given <= 0:
        raise ConfigError.keyless(f"tool '{tool.name}': timeout_s must be a number above 0, not {given!r}")
    return given
