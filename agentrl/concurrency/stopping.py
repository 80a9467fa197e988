"""Stopping a run: the first Ctrl-C or SIGTERM stops the run after the current step, the second stops it immediately."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None  # the types of `signal`

STOPPING = "stopping after this step; press Ctrl-C again to stop now"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopAsked(Exception):  # noqa: N818  # not an error: the run stopped on request and saved its checkpoint
    """Raised after a step when the run stops early on request."""


class _Stop:
    """Global stop state of the process.

    Attributes:
        finishes: whether the run finishes its step before it stops.
        asked: whether a stop after the step was requested.
        announced: whether other code prints the message about the stop.
    """

    finishes = asked = announced = False


stop = _Stop()


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Make the first signal in the block only request a stop, if `stop.finishes` is set.

    On other threads than the main thread, this has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, _hearing(earlier[number]))
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, earlier[number])


@contextmanager
def finishing_steps() -> Iterator[None]:
    """Inside the block, a run that has called `begin_steps` finishes its step before it stops."""
    stop.finishes = stop.asked = False
    try:
        yield
    finally:
        stop.finishes = False


def begin_steps() -> None:
    """Mark the start of training steps. From then on, a stopped run finishes its step and saves a checkpoint."""
    stop.finishes = True


def _hearing(earlier: Handler) -> Callable[[int, FrameType | None], None]:
    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.finishes and not stop.asked:
            stop.asked = True
            if not stop.announced:
                os.write(2, f"agentrl: {STOPPING}\n".encode())
        elif callable(earlier):
            earlier(number, frame)
        elif earlier != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return on_signal
