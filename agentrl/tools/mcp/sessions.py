"""Sessions of one MCP server: one for each rollout that uses it, or one for all rollouts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from mcp.types import Tool
from pydantic import JsonValue

from agentrl.tools.mcp.answers import read_result
from agentrl.tools.mcp.entries import MAX_SESSIONS, McpOptions
from agentrl.tools.mcp.reaper import Reaper
from agentrl.tools.mcp.servers import McpServer
from agentrl.tools.mcp.session import ServerFailedError, Session
from agentrl.tools.result import Answer

WAIT_S = 600.0
"""Maximum seconds that a call waits for a free session. Without a maximum, rollouts that hold sessions of other servers
could deadlock."""
_SHOWN = 200
_MAX_COMPARISONS = 10
"""Maximum number of comparisons of a server's current tools with its tools at the start. Each report of a change causes
a comparison."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReachedServer:
    """A server that answered at the start of the run."""

    server: McpServer
    options: McpOptions
    handshake: str
    tools: Mapping[str, Tool]


class ServerSessions:
    """Sessions by owner (a rollout). All methods run on one event loop.

    Args:
        counts: counts for `McpConnections.metrics`; all servers of a run share this counter.
    """

    def __init__(self, reached: ReachedServer, reaper: Reaper, counts: Counter[str], seconds: dict[str, float]) -> None:
        self._server, self._options, self._handshake = reached.server, reached.options, reached.handshake
        self._reaper, self._counts, self._seconds = reaper, counts, seconds
        self._owned: dict[str, _Owned] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(self._options.max_sessions or MAX_SESSIONS)
        self._shared = self._options.sessions == "shared"
        self._pace = Pace(self._options.rate_limit)
        self._tools = reached.tools
        self._comparisons_left = _MAX_COMPARISONS

    async def call(self, owner: str, tool: str, arguments: dict[str, JsonValue], timeout_s: float) -> Answer:
        """Run one call in the owner's session. The session is opened at its first use, and reopened after it was lost.

        Raises:
            ToolError, OverdueError, ServerFailedError: see `Session.call`.
        """
        with self._timed("mcp_wait_s"):
            await self._pace.wait()
        session = await self._session("" if self._shared else owner)
        self._counts["mcp_calls"] += 1
        with self._timed("mcp_call_s"):
            result = await session.call(tool, arguments, timeout_s)
        return read_result(result, self._options.reading)

    def release(self, owner: str) -> None:
        """Close the owner's session, if it has one; does not wait."""
        if owned := self._owned.pop(owner, None):
            task = asyncio.ensure_future(owned.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Close all sessions."""
        for owner in [*self._owned]:
            self.release(owner)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _session(self, owner: str) -> Session:
        if owner not in self._owned:
            self._owned[owner] = _Owned(self)
        return await self._owned[owner].get()

    async def open(self, *, again: bool) -> Session:
        """Open a session in a free slot.

        Raises:
            ServerFailedError: no slot became free, or the server did not start.
        """
        with self._timed("mcp_wait_s"):
            await self._place()
        session = Session(self._server, self._reaper, self._handshake, lambda: self._changed(session))
        try:
            with self._timed("mcp_open_s"):
                await session.open(self._options.start_timeout_s)
        except BaseException:
            await self.end(session)
            raise
        self._counts["mcp_sessions_opened"] += 1
        self._counts["mcp_sessions_reopened"] += again
        return session

    async def end(self, session: Session) -> None:
        """Close a session and free its slot."""
        try:
            await session.close()
        finally:
            self._slots.release()

    async def _place(self) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._slots.acquire()
        except TimeoutError:
            most = self._options.max_sessions or MAX_SESSIONS
            raise ServerFailedError(
                f"MCP server '{self._server.name}': no session became free in {WAIT_S:g} s (max_sessions: {most})"
            ) from None

    def _changed(self, session: Session) -> None:
        """Compare the tools with the initial tools, because many servers report a change although no tool changed."""
        if self._comparisons_left > 0:
            self._comparisons_left -= 1
            task = asyncio.ensure_future(self._compare(session))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _compare(self, session: Session) -> None:
        with suppress(ServerFailedError):
            listed = {tool.name: tool for tool in await session.list_tools(self._options.start_timeout_s)}
            changed = [name for name, tool in self._tools.items() if listed.get(name) != tool]
            if changed and self._comparisons_left >= 0:
                self._comparisons_left = -1
                _LOGGER.warning(
                    "MCP server '%s' changed its tools (%s); the run keeps the tools listed at the start",
                    self._server.name,
                    ", ".join(changed)[:_SHOWN],
                )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started


class _Owned:
    """The session of one owner. After the session was lost, the next use opens a new one."""

    def __init__(self, sessions: ServerSessions) -> None:
        self._sessions = sessions
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._closed = self._was_open = False

    async def get(self) -> Session:
        async with self._opening:
            if self._closed:
                raise ServerFailedError("the rollout has ended")
            if self._session is not None and not self._session.alive:
                await self._drop()
            if self._session is None:
                self._session = await self._sessions.open(again=self._was_open)
                self._was_open = True
            return self._session

    async def close(self) -> None:
        self._closed = True
        async with self._opening:
            await self._drop()

    async def _drop(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            with suppress(Exception):  # the SDK may fail; the slot is freed anyway
                await self._sessions.end(session)


class Pace:
    """Limit on calls per second. After a pause of a second, `per_second` calls (at least 1) may start together.

    Args:
        per_second: the limit; None: no limit.
    """

    def __init__(self, per_second: float | None) -> None:
        self._gap_s = 0.0 if per_second is None else 1.0 / per_second
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next call may start."""
        if self._gap_s:
            await asyncio.sleep(self.reserve(asyncio.get_running_loop().time()))

    def reserve(self, now: float) -> float:
        """Reserve the next call; return the seconds until it may start."""
        self._next = max(self._next, now - max(1.0, self._gap_s)) + self._gap_s
        return max(0.0, self._next - now)
