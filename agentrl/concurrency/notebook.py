"""Executes a run on a worker thread, because the main thread of a notebook already runs an event loop.

The main thread forwards Ctrl-C to the run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextvars import ContextVar
from functools import partial
from threading import Lock, Thread
from types import TracebackType
from typing import ParamSpec, TypeAlias, TypeVar

from agentrl.concurrency.stopping import stop_on_signals

P = ParamSpec("P")
R = TypeVar("R")

POLL_S = 0.1
"""Seconds between checks whether the waiting task was cancelled. The event loop is blocked, so polling is needed."""


def run_loop(main: Coroutine[object, object, R]) -> R:
    """Run a coroutine like `asyncio.run`; `call_elsewhere` can interrupt it from another thread.

    Raises:
        KeyboardInterrupt: the run was interrupted.
    """
    ending = _ENDING.get()
    return asyncio.run(_run_with_signals(main)) if ending is None else ending.run(main)


async def _run_with_signals(main: Coroutine[object, object, R]) -> R:
    """Run `main` with agentrl's signal handlers instead of those of asyncio."""
    with stop_on_signals():
        return await main


def outside_loop(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that starts an event loop. If this thread already runs a loop (notebook), use another thread."""
    try:
        return call_elsewhere(function, *args, **kwargs) if _in_loop() else function(*args, **kwargs)
    except KeyboardInterrupt as error:
        stopped = Stopped(*error.args)
    raise stopped  # raised outside the except block, so that the traceback does not show the KeyboardInterrupt


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def call_elsewhere(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function` on another thread and wait for the result. Use it if this thread runs an event loop.

    On Ctrl-C, or if the calling task is cancelled, the `run_loop` of the other thread is interrupted, and this function
    waits until the other thread ends. A second Ctrl-C stops the waiting.
    """
    cancelled, ending, future = _cancellations(), _Ending(), Future[R]()
    # not an executor: it would not wait for its thread if Ctrl-C arrived while the thread is being started
    thread = Thread(target=_call, args=(partial(function, *args, **kwargs), future, ending), name="agentrl-run")
    try:
        with stop_on_signals():
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
    except BaseException as error:  # the waiting thread raises it
        future.set_exception(error)


def _cancellations() -> int:
    """Return how often the current task was cancelled.

    Under `asyncio.run`, the first Ctrl-C only cancels the task; it raises no KeyboardInterrupt.
    """
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _result(future: Future[R], cancelled: int) -> R:
    """Return the result; raise CancelledError if this task was cancelled more than `cancelled` times."""
    while not wait([future], POLL_S).done:
        if _cancellations() > cancelled:
            raise asyncio.CancelledError
    return future.result()


class _Ending:
    """Lets one thread end the event loop of another thread.

    `ask` may be called at any time: also before the loop has started, or after it has ended.
    """

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
            self._set(None)  # a closed loop accepts no callbacks

    def _set(self, cancel: Callable[[], object] | None) -> None:
        with self._lock:
            self._cancel = cancel
            if cancel and self._asked:
                cancel()


_ENDING: ContextVar[_Ending | None] = ContextVar("ending", default=None)


Hook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class Stopped(KeyboardInterrupt):
    """Raised when Ctrl-C or SIGTERM ended `agentrl.train`, `evaluate` or `rollout`; the text explains how to resume.

    If the exception is not caught, a script or a notebook cell prints only the exception's text, without a traceback.
    """

    def __init__(self, text: str = "stopped") -> None:
        super().__init__(text)
        if getattr(sys.excepthook, "__module__", "") != __name__:
            sys.excepthook = _hook(sys.excepthook)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints."""
        return [_line(self)]


def _hook(earlier: Hook) -> Hook:
    def show(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        if isinstance(error, Stopped):
            print(_line(error), file=sys.stderr)
        else:
            earlier(kind, error, frames)

    return show


def _line(error: Stopped) -> str:
    return f"agentrl: {error}"
