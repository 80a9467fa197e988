"""A run off the main thread, as in a notebook: Ctrl-C, which the main thread alone hears, ends it all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextvars import ContextVar
from functools import partial
from threading import Lock, Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

LOOK_S = 0.1
"""How often to look whether the task that waits was cancelled: its event loop stands still and cannot say so."""


def run_loop(main: Coroutine[object, object, R]) -> R:
    """`asyncio.run`, which `call_elsewhere` can end from its own thread as Ctrl-C does in the main one.

    Raises:
        KeyboardInterrupt: it was ended so.
    """
    ending = _ENDING.get()
    return asyncio.run(main) if ending is None else ending.run(main)


def call_elsewhere(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function` on another thread, since an event loop is at work on this one, and wait for it.

    On Ctrl-C, or when the task that calls is cancelled, the `run_loop` of that thread is ended first; a second Ctrl-C
    no longer waits for that.
    """
    cancelled, ending, future = _cancellations(), _Ending(), Future[R]()
    # no executor: interrupted while it starts its thread, it would not know the thread, and not wait for it
    thread = Thread(target=_call, args=(partial(function, *args, **kwargs), future, ending), name="agentrl-run")
    try:
        thread.start()
        return _result(future, cancelled)
    except (KeyboardInterrupt, asyncio.CancelledError):
        ending.ask()
        raise
    finally:
        if thread.is_alive():
            thread.join()


def _call(function: Callable[[], R], future: Future[R], ending: _Ending) -> None:
    _ENDING.set(ending)
    try:
        future.set_result(function())
    except BaseException as error:  # handed to whoever waits
        future.set_exception(error)


def _cancellations() -> int:
    """How often the current task was cancelled. Under `asyncio.run`, that is all that the first Ctrl-C does."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _result(future: Future[R], cancelled: int) -> R:
    """Its result, unless this task is cancelled once more than `cancelled` times."""
    while not wait([future], LOOK_S).done:
        if _cancellations() > cancelled:
            raise asyncio.CancelledError
    return future.result()


class _Ending:
    """How one thread asks the event loop of another to end. May be asked before there is one, and after."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._asked = False
        self._cancel: Callable[[], object] | None = None

    def ask(self) -> None:
        with self._lock:
            self._asked = True
            if self._cancel:
                self._cancel()

    def run(self, main: Coroutine[object, object, R]) -> R:
        try:
            return asyncio.run(self._watched(main))
        except asyncio.CancelledError:
            if not self._asked:
                raise
            raise KeyboardInterrupt from None

    async def _watched(self, main: Coroutine[object, object, R]) -> R:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        self._set(partial(loop.call_soon_threadsafe, task.cancel))
        try:
            return await task
        finally:
            self._set(None)  # a closed loop can no longer be told

    def _set(self, cancel: Callable[[], object] | None) -> None:
        with self._lock:
            self._cancel = cancel
            if cancel and self._asked:
                cancel()


_ENDING: ContextVar[_Ending | None] = ContextVar("ending", default=None)
