"""Ctrl-C and SIGTERM: the first asks a command to end; the second, or too long a wait, ends the process at once."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import NoReturn

GRACE_S = 10.0
"""Seconds a command has to end by itself, once asked to."""

INTERRUPTED = 130
"""Exit status of a command that was interrupted."""

_words: list[Callable[[], str]] = []  # of the process, as signals are


@contextmanager
def last_words(say: Callable[[], str]) -> Iterator[None]:
    """While inside, `say()` is what is said should the process be ended at once."""
    _words.append(say)
    try:
        yield
    finally:
        _words.remove(say)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """While inside, SIGTERM does what Ctrl-C does, and neither waits for ever. For a command in the main thread.

    Python runs a signal's handler only when the main thread gets to it, which code that hangs in C never does. So a
    thread watches the file descriptor that the handler in C writes to, and ends the process by itself. Files are
    written aside and renamed, so this loses what is being written and nothing else.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as set_wakeup_fd asks
    earlier_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    earlier = signal.signal(signal.SIGTERM, _interrupt)
    watcher = Thread(target=_watch, args=(reader,), name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
        signal.set_wakeup_fd(earlier_writer)
        os.close(writer)  # which ends the watcher
        watcher.join()
        os.close(reader)


def _interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a shell's background job ignores Ctrl-C, and must still end when it is told to
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def _watch(reader: int) -> None:
    """Wait for signals until the other end is closed."""
    end_s: float | None = None
    words: list[Callable[[], str]] = []
    while True:
        ready, _, _ = select.select([reader], [], [], None if end_s is None else max(0.0, end_s - time.monotonic()))
        if not ready:
            _end_at_once(words)
        if not (received := os.read(reader, 64)):
            return
        for number in received:
            if number in (signal.SIGINT, signal.SIGTERM):
                if end_s is not None:
                    _end_at_once(words)
                end_s = time.monotonic() + GRACE_S
                words = list(_words)  # the second signal also raises in the main thread, which then takes them back


def _end_at_once(words: Sequence[Callable[[], str]]) -> NoReturn:
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")  # a live panel hides the cursor
    text = "".join(f"agentrl: {say()}\n" for say in words)
    os.write(2, f"{text}agentrl: interrupted, ended at once\n".encode())  # sys.stderr may be locked by who hangs
    os._exit(INTERRUPTED)
