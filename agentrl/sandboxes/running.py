"""A call that runs in a sandbox and can be stopped without ending the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

from agentrl.sandboxes.base import EndsProcesses, Sandbox

T = TypeVar("T")

_STOP_S = 5.0
"""Seconds to wait for the end of a stopped call. If the call has not ended by then, its sandbox is killed."""
_ASK_S = 0.05
"""Pause between two attempts to stop a call."""


@asynccontextmanager
async def running_call(sandbox: Sandbox, call: Coroutine[object, object, T]) -> AsyncIterator[RunningCall[T]]:
    """Yield a running call of a sandbox. The end of the block ends the call, but not the sandbox."""
    running = RunningCall(sandbox, asyncio.ensure_future(call))
    try:
        yield running
    finally:
        await running.end()


async def run_stoppable(sandbox: Sandbox, call: Coroutine[object, object, T]) -> T:
    """Return the result of a call of a sandbox. If the caller is cancelled, the call ends, but not the sandbox."""
    async with running_call(sandbox, call) as running:
        return await running.wait()


class RunningCall(Generic[T]):
    """A running call of a sandbox, such as a command."""

    def __init__(self, sandbox: Sandbox, running: asyncio.Future[T]) -> None:
        self._sandbox, self._running = sandbox, running

    async def wait(self) -> T:
        """Wait for the result. If the caller is cancelled, the call continues.

        Raises:
            SandboxEndedError, SandboxUnavailableError: see `Sandbox`.
        """
        return await asyncio.shield(self._running)

    async def end(self) -> T | None:
        """End the call; return its result, or None if it failed.

        If this method is cancelled, or takes too long, the sandbox ends.
        """
        assert isinstance(self._sandbox, EndsProcesses)  # true for all kinds of sandboxes with `PoolSettings.setups`
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    while not self._running.done():
                        self._sandbox.stop_command()
                        await asyncio.wait({self._running}, timeout=_ASK_S)
        finally:
            self._running.cancel()
            await asyncio.wait({self._running})
        ended = self._running.cancelled() or self._running.exception() is not None
        return None if ended else self._running.result()
