"""A bounded number of sandboxes, one for each rollout that uses one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from agentrl.sandboxes.base import Sandbox, SandboxEndedError, SandboxProvider


class SandboxPool:
    """Sandboxes by owner (a rollout). The tools of a rollout share one; it lasts until `release`.

    Args:
        max_running: owners beyond this number wait until another releases its sandbox.
    """

    def __init__(self, provider: SandboxProvider, max_running: int) -> None:
        self._provider, self._max_running = provider, max_running
        self._owned: dict[str, OwnedSandbox] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._slots: asyncio.Semaphore | None = None
        self._checked: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0

    async def of(self, owner: str) -> OwnedSandbox:
        """Return the owner's sandbox, which is started when it is first used. Waits for a free place.

        Raises:
            ConfigError: sandboxes of this kind do not hold on this machine; checked before the first.
        """
        await self._check()
        if owner not in self._owned:
            self._owned[owner] = OwnedSandbox(self)
        return self._owned[owner]

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[OwnedSandbox]:
        """Yield a sandbox for the work of one block, which waits for its end.

        Raises:
            ConfigError: as `of`.
        """
        await self._check()
        owned = OwnedSandbox(self)
        try:
            yield owned
        finally:
            await owned.close()

    async def _check(self) -> None:
        if self._checked is None:
            self._checked = asyncio.ensure_future(self._provider.check())
            self._slots = asyncio.Semaphore(self._max_running)
        await asyncio.shield(self._checked)

    def release(self, owner: str) -> None:
        """End the owner's sandbox, if it has one; does not wait for the end."""
        if owned := self._owned.pop(owner, None):
            task = asyncio.ensure_future(owned.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all sandboxes."""
        for owner in [*self._owned]:
            self.release(owner)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._checked is not None:
            await self._provider.close()

    def metrics(self) -> dict[str, float]:
        """`sandboxes_started`, `sandboxes_ended` (by what ran in them), `sandbox_s`: seconds that they ran."""
        return {
            "sandboxes_started": self._counts["started"],
            "sandboxes_ended": self._counts["ended"],
            "sandbox_s": self._seconds,
        }

    async def start(self) -> tuple[Sandbox, float]:
        """Start a sandbox in a free place; return it with its start time."""
        assert self._slots is not None
        await self._slots.acquire()
        try:
            sandbox = await self._provider.start()
        except BaseException:
            self._slots.release()
            raise
        self._counts["started"] += 1
        return sandbox, time.monotonic()

    async def end(self, sandbox: Sandbox, started: float, *, by_itself: bool) -> None:
        """End a sandbox and free its place."""
        assert self._slots is not None
        try:
            await sandbox.kill()
        finally:
            self._counts["ended"] += by_itself
            self._seconds += time.monotonic() - started
            self._slots.release()


class OwnedSandbox:
    """The sandbox of one owner; a new one is started after it ended."""

    def __init__(self, pool: SandboxPool) -> None:
        self._pool = pool
        self._running: tuple[Sandbox, float] | None = None
        self._using = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Sandbox:
        """Wait until no other call uses the sandbox; start it if there is none."""
        await self._using.acquire()
        try:
            if self._closed:
                raise SandboxEndedError("the rollout has ended")
            if self._running is None:
                self._running = await self._pool.start()
            return self._running[0]
        except BaseException:
            self._using.release()
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Drop a sandbox that ended."""
        try:
            if isinstance(error, SandboxEndedError):
                await self._drop(by_itself=True)
        finally:
            self._using.release()

    async def close(self) -> None:
        """End the sandbox, and with it a call that still runs in it."""
        self._closed = True
        if self._running is not None:
            with suppress(Exception):  # of the place where it runs; `end` frees its place
                await self._running[0].kill()
        async with self._using:
            await self._drop(by_itself=False)

    async def _drop(self, *, by_itself: bool) -> None:
        if self._running is not None:
            (sandbox, started), self._running = self._running, None
            await self._pool.end(sandbox, started, by_itself=by_itself)
