"""Ctrl-C and SIGTERM: the first asks a command to end; the second, or too long a wait, ends the process at once."""

from __future__ import annotations

import atexit
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
"""Exit status of a command that Ctrl-C ended."""

_words: list[Callable[[], str]] = []  # of the process, as signals are
_asked_by: list[int] = []  # the signal that asked the command to end; likewise


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
    """While inside, SIGTERM does what Ctrl-C does, and neither waits for ever. For the command of a process, in its
    main thread: once it is interrupted, or the process exits, a further Ctrl-C is ignored.

    Python runs a signal's handler only when the main thread gets to it, which code that hangs in C never does. So a
    thread watches the file descriptor that the handler in C writes to, and ends the process by itself. Files are
    written aside and renamed, so this loses what is being written and nothing else.
    """
    _asked_by.clear()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as set_wakeup_fd asks
    earlier_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    earlier = signal.signal(signal.SIGTERM, _interrupt)
    watcher = Thread(target=_watch, args=(reader,), name="signals", daemon=True)
    watcher.start()
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it would be raised in whatever tidies up, libraries included
        raise
    finally:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the last to register is the first to be called
        signal.signal(signal.SIGTERM, earlier)
        signal.set_wakeup_fd(earlier_writer)
        os.close(writer)  # which ends the watcher
        watcher.join()
        os.close(reader)


def exit_status() -> int:
    """Of a command that a signal ended, as shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + _asked_by[0] if _asked_by else INTERRUPTED


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
                _asked_by.append(number)
                words = list(_words)  # the second signal also raises in the main thread, which then takes them back


def _end_at_once(words: Sequence[Callable[[], str]]) -> NoReturn:
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")  # a live panel hides the cursor
    text = "".join(f"agentrl: {say()}\n" for say in words)
    os.write(2, f"{text}agentrl: interrupted, ended at once\n".encode())  # sys.stderr may be locked by who hangs
    os._exit(exit_status())
