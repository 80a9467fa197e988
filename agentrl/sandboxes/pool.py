"""A pool of sandboxes, limited in number: one sandbox for each rollout that needs one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from agentrl.sandboxes.base import (
    Sandbox,
    SandboxEndedError,
    SandboxFileError,
    SandboxProvider,
    SandboxSetup,
    SandboxUnavailableError,
)
from agentrl.sandboxes.settings import PoolSettings
from agentrl.sandboxes.start_rate import StartRate

_LOGGER = logging.getLogger(__name__)
MAX_IDLE_S = 600.0
"""A prewarmed sandbox that waited longer than this is replaced, because services end sandboxes after some time."""


@dataclass(eq=False, slots=True)
class Running:
    """A running sandbox, and its start time."""

    sandbox: Sandbox
    since: float

    def seconds(self) -> float:
        """Return for how many seconds the sandbox has run."""
        return time.monotonic() - self.since


@dataclass(frozen=True, slots=True)
class Content:
    """Initial content of the sandbox of an owner (a rollout).

    Attributes:
        fill: prepares the sandbox before its first use.
    """

    setup: SandboxSetup
    fill: Callable[[Sandbox], Awaitable[None]]


class SandboxPool:
    """Sandboxes by owner (a rollout). The tools of a rollout share one sandbox, which lasts until `release`.

    With `prewarm`, that number of sandboxes is started in advance. If one of them is ready, a rollout whose sandbox has
    no `Content` gets it immediately. The pool then starts a replacement, unless other rollouts wait for a slot.

    Args:
        settings: owners beyond `max_running` wait until another owner releases its sandbox.
    """

    def __init__(self, provider: SandboxProvider, settings: PoolSettings) -> None:
        self._provider, self.settings = provider, settings
        self._rate = StartRate(settings.service, settings.starts_per_s) if settings.starts_per_s else None
        self._owned: dict[str, OwnedSandbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: set[Running] = set()
        self._idle: deque[Running] = deque()
        self._num_taken = self._num_waiting = self._num_ahead = 0
        self._slots = asyncio.Semaphore(settings.max_running)
        self._checked: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()
        self._seconds = self._waited_s = 0.0
        self._closed = False

    async def begin(self) -> None:
        """Check once that sandboxes of this kind work; start `prewarm` sandboxes in the background.

        Raises:
            ConfigError: sandboxes of this kind cannot run, or are not isolated, on this machine.
        """
        if self._checked is None:
            self._checked = asyncio.ensure_future(self._provider.check())
        await asyncio.shield(self._checked)
        self._start_ahead()

    async def of(self, owner: str) -> OwnedSandbox:
        """Return the owner's sandbox. The first use waits for a free slot and starts the sandbox.

        Raises:
            ConfigError: see `begin`.
        """
        await self.begin()
        if owner not in self._owned:
            self._owned[owner] = OwnedSandbox(self)
        return self._owned[owner]

    def reserve(self, owner: str, content: Content) -> None:
        """Set the initial content of the owner's sandbox and of its replacements. Nothing is started."""
        self._owned[owner] = OwnedSandbox(self, content)

    @asynccontextmanager
    async def borrowed(self, content: Content | None = None) -> AsyncIterator[OwnedSandbox]:
        """Yield a sandbox for one `with` block. The exit of the block ends the sandbox and waits until it has ended.

        Raises:
            ConfigError: see `begin`.
        """
        await self.begin()
        owned = OwnedSandbox(self, content)
        try:
            yield owned
        finally:
            await owned.close()

    def release(self, owner: str) -> None:
        """End the owner's sandbox, if there is one, without waiting for its end."""
        if owned := self._owned.pop(owner, None):
            self._in_background(owned.close())

    async def close(self) -> None:
        """End all sandboxes, including other sandboxes of this process that the provider finds."""
        self._closed = True
        for owner in [*self._owned]:
            self.release(owner)
        while self._tasks or self._idle:
            while self._idle:
                self._in_background(self._stop(self._idle.popleft()))
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._checked is not None and not (await asyncio.gather(self._checked, return_exceptions=True))[0]:
            await self._provider.close()

    def metrics(self) -> dict[str, float]:
        """Return counts since the start of the run.

        `sandboxes_started`, `sandboxes_ended` (a program inside ended its sandbox) and `sandboxes_failed` (did not
        start, or were lost) are numbers of sandboxes. `sandbox_s` is the total running time of all sandboxes in
        seconds. `sandbox_wait_s` is the total time in seconds that rollouts waited for a sandbox. `sandbox_cost_usd` is
        included if the kind has a price.
        """
        seconds = self._seconds + sum(each.seconds() for each in self._running)
        price = self.settings.usd_per_s
        return {
            "sandboxes_started": self._counts["started"],
            "sandboxes_ended": self._counts["ended"],
            "sandboxes_failed": self._counts["failed"],
            "sandbox_s": seconds,
            "sandbox_wait_s": self._waited_s,
            **({"sandbox_cost_usd": seconds * price} if price else {}),
        }

    async def start(self, content: Content | None = None) -> Running:
        """Wait for a free slot; return a prewarmed sandbox or a new one."""
        began = time.monotonic()
        self._num_waiting += 1
        try:
            return await self._in_a_place(self._idle_or_new if content is None else partial(self._filled, content))
        finally:
            self._num_waiting -= 1
            self._waited_s += time.monotonic() - began
            self._start_ahead()

    async def end(self, running: Running) -> None:
        """End a sandbox and free its slot."""
        try:
            await self._stop(running)
        finally:
            self._leave_place()

    def count(self, what: str) -> None:
        """Count a sandbox; `what` is `ended` (a program in the sandbox ended it) or `failed`."""
        self._counts[what] += 1

    async def _in_a_place(self, work: Callable[[], Awaitable[Running]]) -> Running:
        """Take a slot and do the work. The slot stays taken if the work succeeds."""
        await self._slots.acquire()
        self._num_taken += 1
        try:
            return await work()
        except BaseException:
            self._leave_place()
            raise

    def _leave_place(self) -> None:
        self._num_taken -= 1
        self._slots.release()

    async def _idle_or_new(self) -> Running:
        while self._idle:
            running = self._idle.popleft()
            if running.seconds() <= MAX_IDLE_S:
                return running
            await self._stop(running)
        return await self._new()

    async def _filled(self, content: Content) -> Running:
        running = await self._new(content.setup)
        try:
            await content.fill(running.sandbox)
        except BaseException as error:
            await self._stop(running)
            if isinstance(error, SandboxEndedError | SandboxFileError):
                raise SandboxUnavailableError(f"a sandbox could not be prepared: {error}") from error
            raise
        return running

    async def _new(self, setup: SandboxSetup | None = None) -> Running:
        if self._rate is not None:
            await self._rate.wait()
        try:
            starting = self._provider.start() if setup is None else self._provider.start(setup)
            running = Running(await starting, time.monotonic())
        except SandboxUnavailableError:
            self.count("failed")
            raise
        self.count("started")
        self._running.add(running)
        return running

    async def _stop(self, running: Running) -> None:
        try:
            await running.sandbox.kill()
        finally:
            self._running.discard(running)
            self._seconds += running.seconds()

    def _start_ahead(self) -> None:
        """Start missing prewarmed sandboxes in free slots, unless rollouts wait for slots."""
        if self._closed or self._num_waiting:
            return
        missing = self.settings.prewarm - len(self._idle) - self._num_ahead
        free = self.settings.max_running - self._num_taken - len(self._idle)
        for _ in range(min(missing, free)):
            self._num_ahead += 1
            self._num_taken += 1
            self._in_background(self._start_one_ahead())

    async def _start_one_ahead(self) -> None:
        await self._slots.acquire()
        try:
            self._idle.append(await self._new())
        except SandboxUnavailableError as error:  # only a warning: a rollout will try to start its sandbox itself
            _LOGGER.warning("a sandbox could not be started in advance: %s", error)
        finally:
            self._num_ahead -= 1
            self._leave_place()  # the rollout that gets this sandbox takes the slot again

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class OwnedSandbox:
    """The sandbox of one owner. After the sandbox has ended, the next use starts a new one."""

    def __init__(self, pool: SandboxPool, content: Content | None = None) -> None:
        self._pool, self._content = pool, content
        self._running: Running | None = None
        self._using = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Sandbox:
        """Wait until no other call uses the sandbox; start a sandbox if there is none."""
        await self._using.acquire()
        try:
            if self._closed:
                raise SandboxEndedError("the rollout has ended")
            if self._running is None:
                self._running = await self._pool.start(self._content)
            return self._running.sandbox
        except BaseException:
            self._using.release()
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Drop a sandbox that ended or failed, because its state is unknown."""
        try:
            if isinstance(error, SandboxEndedError | SandboxUnavailableError):
                await self._drop("ended" if isinstance(error, SandboxEndedError) else "failed")
        finally:
            self._using.release()

    async def close(self) -> None:
        """End the sandbox, and a call that still runs in it."""
        self._closed = True
        if self._running is not None:
            with suppress(Exception):  # the service may fail; `end` frees the slot anyway
                await self._running.sandbox.kill()
        async with self._using:
            await self._drop()

    async def _drop(self, counted: str = "") -> None:
        if self._running is not None:
            running, self._running = self._running, None
            if counted and not self._closed:
                self._pool.count(counted)
            await self._pool.end(running)
