"""Daemon threads for functions, and an event loop on a daemon thread for coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from agentrl.concurrency.mailbox import Mailbox, Reply, UnavailableError

T = TypeVar("T")
Work = Callable[[], Coroutine[object, object, T]]
"""Creates the coroutine; called on the thread that runs it."""


class Workers:
    """Daemon threads, one per concurrent call. A hung thread delays neither other calls nor the exit of the program."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` on a thread; `job` must not raise.

        Raises:
            UnavailableError: no more threads can be started.
        """
        try:
            self._idle.pop().put(job)
        except IndexError:
            inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            inbox.put(job)
            try:
                threading.Thread(target=self._serve, args=(inbox,), name="agentrl-worker", daemon=True).start()
            except RuntimeError as error:
                raise UnavailableError(str(error)) from error

    def close(self) -> None:
        """End idle threads now, and busy threads after their jobs."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _serve(self, inbox: SimpleQueue[Callable[[], None] | None]) -> None:
        while (job := inbox.get()) is not None:
            job()
            del job  # frees the job's objects before the next job arrives
            if self._closed:
                return
            self._idle.append(inbox)


class DaemonExecutor(ThreadPoolExecutor):
    """Executor for `asyncio.to_thread` in user coroutines. Unlike the default executor, it never delays the exit."""

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
                except BaseException as error:  # the awaiting caller raises it
                    future.set_exception(error)

        self._workers.submit(job)
        return future


class LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self, workers: Workers) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonExecutor(workers))
        self._mailbox = Mailbox(self.loop)
        self._drained = False
        self._thread = threading.Thread(target=self._serve, name="agentrl-user-loop", daemon=True)
        self._thread.start()

    def begin(self, work: Work[T], reply: Reply[T]) -> None:
        """Start `work` on the loop. Its result is delivered to `reply`, which belongs to the calling loop."""
        reply.home.send(self._mailbox, partial(self._begin, work, reply, copy_context()))

    def cut(self, reply: Reply[T]) -> None:
        """Cancel the work of `reply`."""
        self._mailbox.post(partial(_cut, reply))

    def retire(self) -> None:
        """End the loop after all its tasks have ended."""
        self._mailbox.post(self._begin_drain)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        while not self._drained:
            with suppress(SystemExit, KeyboardInterrupt):  # raised by a task that a user's coroutine started
                self.loop.run_forever()
        self.loop.close()

    def _begin(self, work: Work[T], reply: Reply[T], context: Context) -> None:
        reply.task = self.loop.create_task(_answer(work, reply, self._mailbox), context=context)

    def _begin_drain(self) -> None:
        self._drainage = self.loop.create_task(self._drain())

    async def _drain(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        self._drained = True
        self.loop.stop()


async def _answer(work: Work[T], reply: Reply[T], sender: Mailbox) -> None:
    try:
        value = await work()
    except asyncio.CancelledError:
        reply.deliver(error=RuntimeError("the coroutine cancelled itself"), sender=sender)
    except Exception as error:  # the waiting caller raises it
        reply.deliver(error=error, sender=sender)
    except BaseException as error:  # SystemExit, exception groups, Rust panics: only this call fails
        reply.deliver(error=as_error(error), sender=sender)
    else:
        reply.deliver(value, sender=sender)


def _cut(reply: Reply[T]) -> None:
    reply.cut = True
    if reply.task is not None and not reply.done:
        reply.task.add_done_callback(partial(_ended, reply))
        reply.task.cancel()


def _ended(reply: Reply[T], _: asyncio.Task[None]) -> None:
    if not reply.done:  # a task cancelled before its first step never runs and delivers no result
        reply.deliver()


def as_error(error: BaseException) -> RuntimeError:
    """Convert an exception that would end the program to an error of this call only, with the same traceback."""
    return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
