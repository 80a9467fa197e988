"""An environment object within one rollout: reset, calls of its methods, reward and close."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from agentrl.concurrency import CircuitBreaker, OverdueError, Running, UnavailableError
from agentrl.errors import AgentRLError, DataError, RewardError
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.binding import AgentData, RolloutState, returned_by
from agentrl.tools.class_tool import RELEASE_TIMEOUT_S
from agentrl.tools.environments.reset_arguments import reset_arguments
from agentrl.tools.result import Answer, read_answer
from agentrl.utils.user_code import format_error

if TYPE_CHECKING:
    from agentrl.tools.environments.bound import BoundEnvironment

T = TypeVar("T")


class Episode(RolloutState):
    """The environment object of one rollout. Calls run one at a time, unless the class sets `concurrent_calls`.

    After a call that did not end in time, the state of the object is unknown. Further calls are then not run. They end
    with a `tool_error`, and the reward of the environment is unknown; see `reward`.
    """

    def __init__(self, bound: BoundEnvironment, data: AgentData) -> None:
        self.name = bound.name
        self._bound = bound
        self._spec = bound.spec
        self._data = data
        self._unusable = ""
        self._released = False
        self._creation = threading.Lock()
        concurrent = self._spec.concurrent_calls
        self._turn: AbstractAsyncContextManager[object] = nullcontext() if concurrent else asyncio.Lock()
        self._starting = asyncio.Lock()

    async def start(self) -> str | None:
        """Create the object and call its `reset`; return the observation, if any."""
        bound = self._bound
        with self._start_errors("the constructor"):
            await bound.offload.run_function(self._create, bound.deadline_s, bound.breaker)
        if self._spec.reset_parameters is None:
            return None
        with self._start_errors("reset"):
            arguments = reset_arguments(self._spec, self._data)
            observation = await self._run("reset", arguments, _same, bound.deadline_s, bound.breaker)
        if observation is None or isinstance(observation, str):
            return observation
        raise DataError(f"{self._where('reset')} returned {observation!r:.100}, expected text or None")

    async def call_method(
        self, name: str, arguments: Mapping[str, object], deadline_s: float, breaker: CircuitBreaker
    ) -> Answer:
        """Run a method of the environment that the model called as a tool.

        Raises:
            ToolError: an earlier call did not end in time, or the episode has ended.
            Exception: any exception that the method raises.
        """
        async with self._starting:
            if self.environment is None:  # `start` was not called, for example in a session that an agent loop opened
                await self.start()
        async with self._turn:
            if self._unusable or self.ended:
                raise ToolError(self._unusable or "the episode has ended")
            try:
                return await self._run(name, arguments, read_answer, deadline_s, breaker)
            except (OverdueError, UnavailableError, asyncio.CancelledError):
                self._unusable = f"the environment cannot be used any more, because {name} did not end"
                raise

    async def reward(self) -> float | None:
        """Call the method `reward`; return None if the method does not exist or returns None.

        Raises:
            InfraError: the reward is unknown, because `reward` timed out or an earlier call did not end.
            RewardError: `reward` failed, or returned no finite number.
        """
        name, bound = self._spec.reward_method, self._bound
        if name is None or self.environment is None:
            return None
        where = self._where(name)
        if self._unusable:
            raise InfraError(f"{where} is not called: {self._unusable}")
        try:
            return await self._run(name, {}, _read_reward, bound.deadline_s, bound.breaker)
        except OverdueError:
            raise InfraError(f"{where} did not end within {bound.deadline_s:g} seconds") from None
        except (InfraError, UnavailableError) as error:
            raise InfraError(f"{where}: {error}") from error
        except ToolError as error:
            raise RewardError(f"{where}: {error}") from error
        except AgentRLError:
            raise
        except Exception as error:  # a user's method may raise anything
            raise RewardError(f"{where} raised {format_error(error)}") from error

    def begin_release(self) -> Running[None] | None:
        """Start `close`. An object that is still being created is closed as soon as it exists."""
        with self._creation:
            self._released, environment = True, self.environment
        if environment is None or not self._spec.has_close:
            return None
        return self._bound.offload.begin(partial(_closed, environment), self._bound.release_breaker)

    def _create(self) -> None:
        made = self._spec.make()
        with self._creation:
            self.environment, late = made, self._released
        if late and self._spec.has_close:
            asyncio.run(_closed(made))

    async def _run(
        self,
        name: str,
        arguments: Mapping[str, object],
        read: Callable[[object], T],
        deadline_s: float,
        breaker: CircuitBreaker,
    ) -> T:
        """Call a method: async methods on the event loop of the tools, other methods on a thread."""
        method = getattr(self.environment, name)
        function = partial(method, **arguments)
        if inspect.iscoroutinefunction(method):
            return await self._bound.offload.run(partial(self._awaited, function, read), deadline_s, breaker)
        return await self._bound.offload.run_function(partial(self._called, function, read), deadline_s, breaker)

    def _called(self, function: Callable[[], object], read: Callable[[object], T]) -> T:
        try:
            return read(returned_by(function))
        finally:
            self._read_done()

    async def _awaited(self, function: Callable[[], object], read: Callable[[object], T]) -> T:
        try:
            return read(await cast("Awaitable[object]", function()))
        finally:
            self._read_done()

    def _read_done(self) -> None:
        done = getattr(self.environment, "done", False)
        self.ended = not callable(done) and bool(done)  # a method named `done` is a tool, not the end of the episode

    @contextmanager
    def _start_errors(self, what: str) -> Iterator[None]:
        where = self._where(what)
        try:
            yield
        except OverdueError:
            raise InfraError(f"{where} did not end within {self._bound.deadline_s:g} seconds") from None
        except (InfraError, UnavailableError) as error:
            raise InfraError(f"{where}: {error}") from error
        except AgentRLError:
            raise
        except Exception as error:  # a user's method may raise anything
            raise DataError(f"{where} raised {format_error(error)}") from error

    def _where(self, what: str) -> str:
        return f"row {self._data.task.index}: {what} of environment '{self.name}'"


async def _closed(environment: object) -> None:
    # a separate timeout, because closing continues after its caller is cancelled
    async with asyncio.timeout(RELEASE_TIMEOUT_S):
        close = environment.close  # type: ignore[attr-defined]  # `has_close` is true
        if inspect.iscoroutinefunction(close):
            await close()
        else:
            await asyncio.to_thread(close)


def _read_reward(returned: object) -> float | None:
    return None if returned is None else read_answer(("", returned)).reward


def _same(returned: object) -> object:
    return returned
