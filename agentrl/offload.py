"""User code off the event loop: a deadline for each call, and what cannot be stopped is left behind and counted.

A coroutine runs on an event-loop thread of its own, a plain function on a daemon thread. A coroutine past its deadline
is cancelled; one that blocks its loop is left there, and a new loop takes over. A plain function cannot be stopped: it
is left behind. What is left behind stays in its `Lane` until it ends, and a lane that holds too much refuses calls.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

T = TypeVar("T")

PATIENCE_S = 0.0002
"""How long the waiting event loop may stand still for a call whose kind was this quick the last time."""
GRACE_S = 0.5
"""How long a cancelled coroutine may take to clean up before it is left behind."""


class OverdueError(Exception):
    """The call did not end by its deadline."""


class UnavailableError(Exception):
    """The call could not run, through no fault of its own."""


class Reply(Generic[T]):
    """A value that another thread brings to the event loop that waits for it."""

    def __init__(self) -> None:
        self.done = False
        self.cut = False  # its loop has seen the cancellation, so that loop is alive
        self.task: asyncio.Task[T] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._arrived = threading.Lock()
        self._arrived.acquire()

    def bring(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Deliver, from any thread, once."""
        self._value, self._error, self.done = value, error, True
        self._arrived.release()
        # `wait` sets its waiter before it looks at `done`, so one of the two always sees the other
        if (waiter := self._waiter) is not None:
            with suppress(RuntimeError):  # the waiting loop is closed
                self._loop.call_soon_threadsafe(_wake, waiter)

    async def wait(self, seconds: float, patience_s: float = 0.0) -> bool:
        """Whether it came in time. With patience the loop stands still for that long at first: no detour if quick."""
        if patience_s and self._arrived.acquire(timeout=patience_s):
            return True
        self._waiter = self._loop.create_future()
        if not self.done:
            timer = self._loop.call_later(seconds, _wake, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
        return self.done

    def result(self) -> T:
        """What was brought; raises what was raised."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@dataclass(slots=True)
class Lane:
    """The calls of one kind: whether the last one was quick, and those left behind that still run."""

    name: str
    max_abandoned: int = 16
    patience_s: float = PATIENCE_S
    _abandoned: list[Reply[object]] = field(default_factory=list)

    @property
    def num_abandoned(self) -> int:
        """Calls left behind that have not ended yet."""
        self._abandoned = [reply for reply in self._abandoned if not reply.done]
        return len(self._abandoned)

    def enter(self) -> None:
        """Raises `UnavailableError` while too many earlier calls still hang."""
        if self._abandoned and self.num_abandoned >= self.max_abandoned:
            raise UnavailableError(f"{self.num_abandoned} earlier calls of {self.name} still hang")

    def abandon(self, reply: Reply[T]) -> None:
        """Leave a call behind."""
        self._abandoned.append(cast("Reply[object]", reply))

    def took(self, duration_s: float) -> None:
        """Learn from a call how long the next may be waited for in place."""
        self.patience_s = PATIENCE_S if duration_s < PATIENCE_S else 0.0


class Workers:
    """Daemon threads, as many as there are calls at a time: a hung one delays neither the others nor the exit."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job`, which must not raise, on a thread.

        Raises:
            UnavailableError: no further thread can be started.
        """
        try:
            self._idle.pop().put(job)
        except IndexError:
            inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
            inbox.put(job)
            try:
                threading.Thread(target=self._serve, args=(inbox,), name="agentrl-worker", daemon=True).start()
            except RuntimeError as error:
                raise UnavailableError(str(error)) from error

    def _serve(self, inbox: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            inbox.get()()
            self._idle.append(inbox)


class DaemonExecutor(ThreadPoolExecutor):
    """Lets `asyncio.to_thread` inside a user's coroutine use daemon threads: the stock ones block the exit."""

    def __init__(self, workers: Workers) -> None:
        super().__init__(max_workers=1)
        self._workers = workers

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        """Run `fn` on a thread."""
        future: Future[T] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # handed to whoever awaits it
                    future.set_exception(error)

        self._workers.submit(job)
        return future


class LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self, workers: Workers) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonExecutor(workers))
        self._thread = threading.Thread(target=self._serve, name="agentrl-user-loop", daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], Coroutine[object, object, T]], reply: Reply[T]) -> None:
        """Start `work` on the loop; its end reaches `reply`."""
        self.loop.call_soon_threadsafe(self._begin, work, reply)

    def cut(self, reply: Reply[T]) -> None:
        """Cancel the work of `reply`."""
        self.loop.call_soon_threadsafe(_cut, reply)

    def retire(self) -> None:
        """End once what runs on it has ended."""
        self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._drain()))

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def _begin(self, work: Callable[[], Coroutine[object, object, T]], reply: Reply[T]) -> None:
        reply.task = self.loop.create_task(_contained(work))
        reply.task.add_done_callback(partial(_report, reply))

    async def _drain(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        self.loop.stop()


async def _contained(work: Callable[[], Coroutine[object, object, T]]) -> T:
    try:
        return await work()
    except (SystemExit, KeyboardInterrupt) as error:  # either would end the loop that all calls share
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _report(reply: Reply[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        reply.bring(error=RuntimeError("the coroutine cancelled itself"))
    elif (error := task.exception()) is not None:
        reply.bring(error=error)
    else:
        reply.bring(task.result())


def _cut(reply: Reply[T]) -> None:
    reply.cut = True
    if reply.task is not None:
        reply.task.cancel()


class Offload:
    """Runs user code beside the event loop that awaits it. Threads start when they are first needed."""

    def __init__(self) -> None:
        self._workers = Workers()
        self._thread: LoopThread | None = None
        self.num_replaced_loops = 0

    async def run_function(
        self, function: Callable[[], T], deadline_s: float, lane: Lane, stop: Callable[[], None] | None = None
    ) -> T:
        """Call a plain function on a thread. `stop` is told to end it at the deadline, where something can.

        Raises:
            OverdueError: it did not end in `deadline_s` seconds; it is left behind.
            UnavailableError: too many calls of this lane were left behind, or no thread can be had.
        """
        lane.enter()
        reply: Reply[T] = Reply()

        def job() -> None:
            start = time.perf_counter()
            try:
                value = function()
            except BaseException as error:  # SystemExit of a library too: the caller decides
                reply.bring(error=error)
            else:
                lane.took(time.perf_counter() - start)
                reply.bring(value)

        patience_s = lane.patience_s
        self._workers.submit(job)
        try:
            if not await reply.wait(deadline_s, patience_s):
                raise OverdueError
        except (asyncio.CancelledError, OverdueError):
            lane.abandon(reply)
            if stop is not None:
                stop()
            raise
        return reply.result()

    async def run(self, work: Callable[[], Coroutine[object, object, T]], deadline_s: float, lane: Lane) -> T:
        """Run a coroutine on the loop thread.

        Raises:
            OverdueError: it did not end in `deadline_s` seconds and was cancelled.
            UnavailableError: another call blocked the loop, or too many calls of this lane were left behind.
        """
        lane.enter()
        reply: Reply[T] = Reply()
        thread = self._thread = self._thread or LoopThread(self._workers)
        start, patience_s = time.perf_counter(), lane.patience_s
        thread.begin(work, reply)
        try:
            if not await reply.wait(deadline_s, patience_s):
                raise OverdueError
        except (asyncio.CancelledError, OverdueError):
            await self._end(thread, reply, lane)
            raise
        lane.took(time.perf_counter() - start)
        return reply.result()

    async def _end(self, thread: LoopThread, reply: Reply[T], lane: Lane) -> None:
        thread.cut(reply)
        if await reply.wait(GRACE_S):
            return
        lane.abandon(reply)
        if reply.cut:  # the loop is alive, the coroutine goes on regardless
            return
        if thread is self._thread:
            self._thread, self.num_replaced_loops = None, self.num_replaced_loops + 1
            thread.retire()
        if asyncio.current_task(thread.loop) is not reply.task or reply.task is None:
            raise UnavailableError("another call blocked the loop")

    def close(self) -> None:
        """Let the loop thread end."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.retire()
            thread.join(GRACE_S)
