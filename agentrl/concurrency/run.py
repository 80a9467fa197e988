"""Runs user code on threads, off the event loop that awaits it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

from agentrl.concurrency.circuit_breaker import CircuitBreaker
from agentrl.concurrency.mailbox import Mailbox, OverdueError, Reply, UnavailableError
from agentrl.concurrency.threads import LoopThread, Work, Workers, as_error

T = TypeVar("T")

GRACE_S = 0.5
"""Seconds that a cancelled coroutine may take to clean up before it is abandoned."""


class Running(Generic[T]):
    """A coroutine that runs on a loop thread."""

    def __init__(self, offload: Offload, thread: LoopThread, breaker: CircuitBreaker) -> None:
        self.reply: Reply[T] = Reply(offload.home())
        self._offload, self._thread, self._breaker = offload, thread, breaker

    async def result(self, deadline_s: float, *, detached: bool = False) -> T:
        """Return the coroutine's result, or raise its error.

        Args:
            detached: keep the coroutine running if the caller of this method is cancelled.

        Raises:
            OverdueError: the coroutine did not end in `deadline_s` seconds and was cancelled.
            UnavailableError: the coroutine did not end because another call blocked the loop.
        """
        if not self.reply.done:
            self.reply.watch(self._breaker.name, deadline_s)
        try:
            if not await self.reply.wait(deadline_s):
                await self._end()
                raise OverdueError
        except asyncio.CancelledError:
            if not detached:
                with suppress(UnavailableError):  # only the cancellation is reported
                    await self._end()
            raise
        self._breaker.ended()
        return self.reply.result()

    async def _end(self) -> None:
        self._thread.cut(self.reply)
        if await self.reply.wait(GRACE_S):
            return
        task = self.reply.task
        at_fault = self.reply.cut or (task is not None and asyncio.current_task(self._thread.loop) is task)
        self._breaker.abandon(self.reply, at_fault=at_fault)
        if not self.reply.cut:  # the loop has not processed the cancellation, so the loop is blocked
            self._offload.replace(self._thread)
        if not at_fault:
            raise UnavailableError("another call blocked the loop")


class Offload:
    """Runs user code on threads, off the event loop that awaits it. Threads start when first needed."""

    def __init__(self) -> None:
        self._workers = Workers()
        self._thread: LoopThread | None = None
        self._home: Mailbox | None = None
        self.num_replaced_loops = 0

    def home(self) -> Mailbox:
        """Return the mailbox of the running loop, which receives the replies of calls."""
        loop = asyncio.get_running_loop()
        if self._home is None or self._home.loop is not loop:
            self._home = Mailbox(loop)
        return self._home

    async def run_function(
        self,
        function: Callable[[], T],
        deadline_s: float,
        breaker: CircuitBreaker,
        stop: Callable[[], None] | None = None,
    ) -> T:
        """Call a plain function on a thread.

        Args:
            stop: ends a call that timed out or was cancelled; None if calls cannot be ended.

        Raises:
            OverdueError: the call did not end in `deadline_s` seconds; it is abandoned.
            UnavailableError: the circuit breaker refuses the call, or no thread can be started.
        """
        breaker.enter()
        reply: Reply[T] = Reply(self.home())
        # a call with `stop` runs in another process, so it cannot hold this process's interpreter lock
        watched = (breaker.name, deadline_s) if stop is None else None
        self._workers.submit(partial(copy_context().run, _call, function, reply, watched))
        try:
            if not await reply.wait(deadline_s):
                raise OverdueError
        except (asyncio.CancelledError, OverdueError):
            breaker.abandon(reply)
            if stop is not None:
                stop()
            raise
        breaker.ended()
        return reply.result()

    async def run(self, work: Work[T], deadline_s: float, breaker: CircuitBreaker) -> T:
        """Run a coroutine on the loop thread; raises the errors of `begin` and `Running.result`."""
        return await self.begin(work, breaker).result(deadline_s)

    def begin(self, work: Work[T], breaker: CircuitBreaker) -> Running[T]:
        """Start a coroutine on the loop thread.

        Raises:
            UnavailableError: the circuit breaker refuses the call.
        """
        breaker.enter()
        thread = self._thread = self._thread or LoopThread(self._workers)
        running: Running[T] = Running(self, thread, breaker)
        thread.begin(work, running.reply)
        return running

    def replace(self, thread: LoopThread) -> None:
        """Abandon a blocked event loop. The loop ends by itself once it is no longer blocked."""
        if thread is self._thread:
            self._thread, self.num_replaced_loops = None, self.num_replaced_loops + 1
            thread.retire()

    def close(self) -> None:
        """End the threads when they are idle."""
        self._workers.close()
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.retire()
            thread.join(GRACE_S)


def _call(function: Callable[[], T], reply: Reply[T], watched: tuple[str, float] | None) -> None:
    if watched is not None:
        reply.watch(*watched)
    try:
        value = function()
    except Exception as error:  # the waiting caller raises it
        reply.deliver(error=error)
    except BaseException as error:  # SystemExit in user code must not end the thread or the program
        reply.deliver(error=as_error(error))
    else:
        reply.deliver(value)
