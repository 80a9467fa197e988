"""Runs user code beside the event loop that awaits it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

from agentrl.offload.lane import Lane
from agentrl.offload.mailbox import Mailbox
from agentrl.offload.reply import OverdueError, Reply, UnavailableError
from agentrl.offload.threads import LoopThread, Work, Workers, as_error

T = TypeVar("T")

GRACE_S = 0.5
"""How long a cancelled coroutine may take to clean up before it is left behind."""


class Running(Generic[T]):
    """A coroutine under way on a loop thread."""

    def __init__(self, offload: Offload, thread: LoopThread, lane: Lane) -> None:
        self.reply: Reply[T] = Reply(offload.home())
        self._offload, self._thread, self._lane = offload, thread, lane

    async def result(self, deadline_s: float, *, detached: bool = False) -> T:
        """What it returned; raises what it raised. Detached, it goes on even if whoever awaits this is cancelled.

        Raises:
            OverdueError: it did not end in `deadline_s` seconds and was cancelled.
            UnavailableError: it did not end because another call blocked the loop.
        """
        try:
            if not await self.reply.wait(deadline_s):
                await self._end()
                raise OverdueError
        except asyncio.CancelledError:
            if not detached:
                with suppress(UnavailableError):  # whoever cancelled wants to hear of that alone
                    await self._end()
            raise
        self._lane.ended()
        return self.reply.result()

    async def _end(self) -> None:
        self._thread.cut(self.reply)
        if await self.reply.wait(GRACE_S):
            return
        task = self.reply.task
        at_fault = self.reply.cut or (task is not None and asyncio.current_task(self._thread.loop) is task)
        self._lane.abandon(self.reply, at_fault=at_fault)
        if not self.reply.cut:  # the loop is blocked; otherwise the coroutine goes on regardless
            self._offload.replace(self._thread)
        if not at_fault:
            raise UnavailableError("another call blocked the loop")


class Offload:
    """Runs user code beside the event loop that awaits it. Threads start when they are first needed."""

    def __init__(self) -> None:
        self._workers = Workers()
        self._thread: LoopThread | None = None
        self._home: Mailbox | None = None
        self.num_replaced_loops = 0

    def home(self) -> Mailbox:
        """Where replies arrive: the mailbox of the running loop."""
        loop = asyncio.get_running_loop()
        if self._home is None or self._home.loop is not loop:
            self._home = Mailbox(loop)
        return self._home

    async def run_function(
        self, function: Callable[[], T], deadline_s: float, lane: Lane, stop: Callable[[], None] | None = None
    ) -> T:
        """Call a plain function on a thread. `stop` is told to end it at the deadline, where something can.

        Raises:
            OverdueError: it did not end in `deadline_s` seconds; it is left behind.
            UnavailableError: too many calls of this lane were left behind, or no thread can be had.
        """
        lane.enter()
        reply: Reply[T] = Reply(self.home())
        self._workers.submit(partial(copy_context().run, _call, function, reply))
        try:
            if not await reply.wait(deadline_s):
                raise OverdueError
        except (asyncio.CancelledError, OverdueError):
            lane.abandon(reply)
            if stop is not None:
                stop()
            raise
        lane.ended()
        return reply.result()

    async def run(self, work: Work[T], deadline_s: float, lane: Lane) -> T:
        """Run a coroutine on the loop thread; raises as `begin` and `Running.result` do."""
        return await self.begin(work, lane).result(deadline_s)

    def begin(self, work: Work[T], lane: Lane) -> Running[T]:
        """Start a coroutine on the loop thread.

        Raises:
            UnavailableError: too many calls of this lane were left behind.
        """
        lane.enter()
        thread = self._thread = self._thread or LoopThread(self._workers)
        running: Running[T] = Running(self, thread, lane)
        thread.begin(work, running.reply)
        return running

    def replace(self, thread: LoopThread) -> None:
        """Leave a blocked loop behind; it ends by itself, should it ever be free again."""
        if thread is self._thread:
            self._thread, self.num_replaced_loops = None, self.num_replaced_loops + 1
            thread.retire()

    def close(self) -> None:
        """Let the threads end."""
        self._workers.close()
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.retire()
            thread.join(GRACE_S)


def _call(function: Callable[[], T], reply: Reply[T]) -> None:
    try:
        value = function()
    except Exception as error:  # handed to whoever waits
        reply.bring(error=error)
    except BaseException as error:  # SystemExit of a library must end neither thread nor program
        reply.bring(error=as_error(error))
    else:
        reply.bring(value)
