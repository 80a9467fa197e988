"""Connections to the MCP servers of a run, on a separate event loop, so that servers cannot delay the rollouts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import JsonValue

from agentrl.concurrency.threads import LoopThread, Workers
from agentrl.tools.base import InfraError
from agentrl.tools.mcp.reaper import Reaper
from agentrl.tools.mcp.session import ServerFailedError
from agentrl.tools.mcp.sessions import ReachedServer, ServerSessions
from agentrl.tools.result import Answer

T = TypeVar("T")
CLOSE_S = 30.0
_NUMBERS = ("mcp_sessions_opened", "mcp_sessions_reopened", "mcp_calls")
_SECONDS = ("mcp_call_s", "mcp_open_s", "mcp_wait_s")


class McpConnections:
    """Sessions of all servers. The thread of the event loop starts with the first call."""

    def __init__(self, servers: Sequence[ReachedServer]) -> None:
        self._servers = servers
        self._workers = Workers()
        self._thread: LoopThread | None = None
        self._sessions: list[ServerSessions] = []
        self._reaper = Reaper()
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    async def call(
        self, server: int, owner: str, tool: str, arguments: dict[str, JsonValue], timeout_s: float
    ) -> Answer:
        """Run one call.

        Args:
            server: position of the server in `servers`.

        Raises:
            InfraError: the server failed.
            ToolError, OverdueError: see `Session.call`.
        """
        try:
            return await asyncio.wrap_future(self._run(self._call(server, owner, tool, arguments, timeout_s)))
        except ServerFailedError as error:
            raise InfraError(str(error)) from None

    def release(self, owner: str) -> None:
        """Close the sessions of a rollout; does not wait."""
        if self._thread is not None:
            self._thread.loop.call_soon_threadsafe(self._release, owner)

    def metrics(self) -> dict[str, float]:
        """Return counts and seconds since the start of the run; see docs/mcp.md."""
        return {
            **{name: float(self._counts[name]) for name in _NUMBERS},
            **{name: self._seconds.get(name, 0.0) for name in _SECONDS},
        }

    async def close(self) -> None:
        """Close all sessions, and end all processes of the servers."""
        thread, self._thread = self._thread, None
        if thread is not None:
            closing = asyncio.run_coroutine_threadsafe(self._close(), thread.loop)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.wrap_future(closing)
            thread.retire()
            await asyncio.to_thread(thread.join, CLOSE_S)
        self._workers.close()
        await asyncio.to_thread(self._reaper.close)

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:  # Any: values that coroutine and event loop exchange
        if self._thread is None:
            self._thread = LoopThread(self._workers)
        return asyncio.run_coroutine_threadsafe(work, self._thread.loop)

    async def _call(
        self, server: int, owner: str, tool: str, arguments: dict[str, JsonValue], timeout_s: float
    ) -> Answer:
        if not self._sessions:
            self._sessions = [ServerSessions(each, self._reaper, self._counts, self._seconds) for each in self._servers]
        return await self._sessions[server].call(owner, tool, arguments, timeout_s)

    def _release(self, owner: str) -> None:
        for sessions in self._sessions:
            sessions.release(owner)

    async def _close(self) -> None:
        await asyncio.gather(*(sessions.close() for sessions in self._sessions))
        self._sessions = []
