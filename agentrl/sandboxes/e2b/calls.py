"""Runs calls of the E2B library with agentrl's own deadline, and explains their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_CANCEL_S = 1.0
"""Seconds to wait until a cancelled call has ended its connection."""
_ending: set[asyncio.Task[Any]] = set()  # Any: the result of any call


class NoAnswerError(Exception):
    """A call did not end within its deadline."""


async def within(seconds: float, call: Coroutine[Any, Any, T]) -> T:  # Any: the types that a coroutine never uses
    """Return the result of a call.

    The call runs in a separate task, because the library may wait twice as long as its timeout, and turns a
    cancellation into other errors. So `asyncio.timeout` could miss the cancellation.

    Raises:
        NoAnswerError: the call took longer than `seconds`, and was cancelled.
        Exception: any exception of the call.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
    except asyncio.CancelledError:
        if task.cancelled():  # the library cancelled the call, our caller did not
            raise NoAnswerError("the connection was cancelled") from None
        raise
    finally:
        _end(task)
    await asyncio.wait({task}, timeout=_CANCEL_S)
    raise NoAnswerError(f"no answer in {seconds:g} seconds")


def _end(task: asyncio.Task[Any]) -> None:  # Any: the result of any call
    """Cancel a call that still runs; its exception is ignored."""
    if not task.done():
        _ending.add(task)  # the event loop itself holds only weak references to tasks
        task.add_done_callback(_forget)
        task.cancel()


def _forget(task: asyncio.Task[Any]) -> None:  # Any: the result of any call
    _ending.discard(task)
    if not task.cancelled():
        task.exception()  # otherwise the event loop would log the exception


def described(error: BaseException) -> str:
    """Return the reason of a failure in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
