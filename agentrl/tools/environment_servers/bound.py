"""Connects an environment server to the toolbox: offers its tools, with one session per rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from agentrl.concurrency import Offload
from agentrl.errors import DataError
from agentrl.tools.base import InfraError
from agentrl.tools.binding import AgentData, BindsSeveral, BoundTool, RolloutState, ToolInstance
from agentrl.tools.environment_servers.base import EnvironmentServer
from agentrl.tools.environment_servers.episode import ServerEpisode
from agentrl.tools.mcp.schemas import checked_schema
from agentrl.tools.result import Answer
from agentrl.types.messages import ToolSchema
from agentrl.types.task import Task

WAIT_S = 600.0
"""Maximum seconds that a rollout waits for a free slot."""
CLOSE_S = 10.0
"""Maximum seconds that the run, at its end, waits for all sessions to end."""


class ServerEnvironment(BindsSeveral):
    """The tools of an environment server. Every rollout opens a session, even if its row selects no tools."""

    def __init__(self, name: str, server: EnvironmentServer) -> None:
        self.state = BoundServer(name, server)
        self.opened_always = (self.state,)

    def bound(self, deadline_s: float, offload: Offload) -> Sequence[BoundTool]:
        """Return the tools for the toolbox."""
        return [BoundAction(self.state, schema, deadline_s, offload) for schema in self.state.server.tools]


class BoundServer:
    """A server with a limit on the rollouts that use it at the same time."""

    def __init__(self, name: str, server: EnvironmentServer) -> None:
        self.name, self.server = name, server
        self._max_sessions = server.options.max_sessions
        self._places = asyncio.Semaphore(self._max_sessions)
        self._ending: set[asyncio.Task[None]] = set()

    def open(self, data: AgentData) -> RolloutState:
        """Return the environment of a rollout, not yet started."""
        return ServerEpisode(self, data)

    def check_row(self, task: Task) -> None:
        """Reject a row that the server cannot use."""
        if task.tools_kwargs.get(self.name):
            raise DataError(f"field 'tools_kwargs.{self.name}': an environment server takes no arguments from the row")
        self.server.check_row(task)

    async def take_place(self) -> None:
        """Wait for a free slot.

        Raises:
            InfraError: no slot became free within `WAIT_S` seconds.
        """
        try:
            async with asyncio.timeout(WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise InfraError(
                f"environment '{self.name}': no session became free in {WAIT_S:g} s (max_sessions:"
                f" {self._max_sessions})"
            ) from None

    def free_place(self) -> None:
        """Let another rollout use the server."""
        self._places.release()

    def end(self, episode: ServerEpisode) -> None:
        """Close an episode; does not wait."""
        task = asyncio.ensure_future(episode.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def metrics(self) -> Mapping[str, float]:
        """Return no metrics, because the record of each call already contains its duration and outcome."""
        return {}

    async def close(self) -> None:
        """Wait at most `CLOSE_S` seconds until all sessions have ended, and close all connections."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSE_S)
        await self.server.close()


class BoundAction(BoundTool):
    """A tool of a server."""

    def __init__(self, server: BoundServer, schema: ToolSchema, deadline_s: float, offload: Offload) -> None:
        super().__init__(schema, deadline_s, offload, checked_schema(schema))
        self.deterministic = server.server.options.deterministic
        self.state = self.shared = self._server = server

    def instance(self, data: AgentData) -> ToolInstance:
        """Return the tool in the rollout's session."""
        episode = data.states[self._server]
        assert isinstance(episode, ServerEpisode)  # opened by `self.state`
        return _Action(self, episode)

    def check_row(self, given: Mapping[str, JsonValue]) -> None:
        """Reject arguments of the row, because the arguments of an action come only from the model."""
        if given:
            raise DataError(f"field 'tools_kwargs.{self.name}': the arguments of '{self.name}' come from the model")


class _Action(ToolInstance):
    def __init__(self, bound: BoundAction, episode: ServerEpisode) -> None:
        self._bound, self._episode = bound, episode

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        return await self._episode.act(self._bound.name, arguments, self._bound.deadline_s)
