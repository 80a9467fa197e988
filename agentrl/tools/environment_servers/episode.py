"""The environment of one rollout, which runs on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.concurrency import OverdueError
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.binding import AgentData, RolloutState
from agentrl.tools.environment_servers.base import ServerSession
from agentrl.tools.result import Answer

if TYPE_CHECKING:
    from agentrl.tools.environment_servers.bound import BoundServer


class ServerEpisode(RolloutState):
    """One rollout on a server. Actions run one at a time.

    If the server fails during an action, or the action does not end in time, the state of the server is unknown. Then
    further actions are not run but end with a `tool_error`, and the reward of the rollout is unknown.
    """

    def __init__(self, bound: BoundServer, data: AgentData) -> None:
        self.name = bound.name
        self._bound = bound
        self._session: ServerSession = bound.server.session(data)
        self._turn = asyncio.Lock()
        self._started = self._released = self._holds_place = False
        self._unusable = ""

    async def start(self) -> str | None:
        """Start the environment when the server has a free slot; return the text for the prompt."""
        async with self._turn:
            return await self._start()

    async def act(self, tool: str, arguments: Mapping[str, JsonValue], deadline_s: float) -> Answer:
        """Run an action of the model.

        Raises:
            ToolError: the episode has ended, the state of the server is unknown, or see `ServerSession.act`.
            InfraError: see `ServerSession.act`.
            OverdueError: the action did not end in time.
        """
        async with self._turn:
            if not self._started:  # `start` was not called, for example in a session that an agent loop opened
                await self._start()
            if self._unusable or self.ended:
                raise ToolError(self._unusable or "the episode has ended")
            return await self._act(tool, arguments, deadline_s)

    async def reward(self) -> float | None:
        """Return the server's reward; None if the rollout never started.

        Raises:
            InfraError: the reward is unknown.
        """
        if not self._started:
            return None
        if self._unusable:
            raise InfraError(f"the reward of environment '{self.name}' is not known: {self._unusable}")
        return await self._session.reward()

    def begin_release(self) -> None:
        """End the session on the server; does not wait."""
        if self._started and not self._released:
            self._bound.end(self)
        self._released = True

    async def close(self) -> None:
        """End the session and free its slot."""
        try:
            await self._session.close()
        finally:
            if self._holds_place:
                self._holds_place = False
                self._bound.free_place()

    async def _start(self) -> str:
        if self._released:
            raise InfraError(f"environment '{self.name}': the rollout has ended")
        self._started = True
        try:
            await self._bound.take_place()
            self._holds_place = True
            return await self._session.start()
        except BaseException:
            self._unusable = "the environment did not start"
            raise

    async def _act(self, tool: str, arguments: Mapping[str, JsonValue], deadline_s: float) -> Answer:
        try:
            async with asyncio.timeout(deadline_s):
                step = await self._session.act(tool, arguments)
        except TimeoutError:
            self._unusable = f"the environment cannot be used any more, because {tool} did not end"
            raise OverdueError from None
        except (InfraError, asyncio.CancelledError):
            self._unusable = f"the environment cannot be used any more, because {tool} failed"
            raise
        self.ended = step.done
        return Answer(step.text, step.reward or 0.0)
