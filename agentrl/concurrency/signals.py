"""Ctrl-C and SIGTERM: the first signal ends a command (a training run after its step), the second exits immediately."""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from agentrl.concurrency.stopping import STOPPING, stop
from agentrl.concurrency.watchdog import watchdog

GRACE_S = 10.0
"""Maximum seconds for a command to end after the first signal. There is no limit for a run that finishes its step."""

ENDING = "stopping; press Ctrl-C again to stop now"

INTERRUPTED = 130
"""Exit status of a command ended by Ctrl-C."""

_words: list[Callable[[], str]] = []  # global, because signals are per process
_asked_by: list[int] = []  # the received signals; the first one sets the exit status


@contextmanager
def on_forced_exit(say: Callable[[], str]) -> Iterator[None]:
    """Print the text of `say()` if the process exits immediately inside the block."""
    _words.append(say)
    try:
        yield
    finally:
        _words.remove(say)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C inside the block, and force the exit if the command does not end.

    Use it for the main command of a process, in the main thread. After an interrupt, another Ctrl-C ends the process
    immediately, even while the process exits. If a command was not interrupted, Ctrl-C is ignored while the process
    exits.

    Python runs a signal handler only when the main thread executes Python code, so no handler runs while C code hangs.
    Therefore a thread watches the file descriptor that the C-level handler writes to. This thread can end the process.
    An immediate exit loses only files that are being written: a file gets its final name when it is complete.
    """
    _asked_by.clear()
    stop.announced = True  # the watcher thread prints the message
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # set_wakeup_fd requires this
    earlier_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    earlier = signal.signal(signal.SIGTERM, _interrupt)
    watcher = threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True)
    watcher.start()
    watchdog.watch_signals(reader)  # also watch in another process: the watcher thread needs the interpreter lock
    at_exit = signal.SIG_IGN
    try:
        yield
    except KeyboardInterrupt:
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # a shell's background job ignores SIGINT
            at_exit = signal.SIG_DFL  # Ctrl-C ends the process without a traceback, even if a library hangs at exit
        signal.signal(signal.SIGINT, at_exit)
        raise
    finally:
        stop.announced = False
        atexit.register(signal.signal, signal.SIGINT, at_exit)  # registered last, so it runs before other exit handlers
        signal.signal(signal.SIGTERM, earlier)
        signal.set_wakeup_fd(earlier_writer)
        watchdog.finish()
        os.close(writer)  # ends the watcher
        watcher.join()
        os.close(reader)


def exit_status() -> int:
    """Return the exit status of a command ended by a signal, as in shells: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + _asked_by[0] if _asked_by else INTERRUPTED


def _interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a background job of a shell ignores Ctrl-C, but must end on SIGTERM
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def _watch(reader: int) -> None:
    """Handle signals until the other end of the pipe is closed."""
    end_s: float | None = None
    asked = False
    words: list[Callable[[], str]] = []
    while True:
        ready, _, _ = select.select([reader], [], [], None if end_s is None else max(0.0, end_s - time.monotonic()))
        if not ready:
            _end_at_once(words)
        if not (received := os.read(reader, 64)):
            return
        for number in received:
            if number in (signal.SIGINT, signal.SIGTERM):
                if asked:
                    _end_at_once(words)
                asked, finishes = True, stop.finishes
                end_s = None if finishes else time.monotonic() + GRACE_S
                os.write(2, f"agentrl: {STOPPING if finishes else ENDING}\n".encode())
                _asked_by.append(number)
                words = list(_words)  # a copy, because the main thread removes texts on the second signal


def _end_at_once(words: Sequence[Callable[[], str]]) -> NoReturn:
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")  # show the cursor, which a live panel hides
    text = "".join(f"agentrl: {say()}\n" for say in words)
    os.write(2, f"{text}agentrl: interrupted, ended at once\n".encode())  # sys.stderr may be locked by a hung thread
    os._exit(exit_status())


def leave(status: int) -> NoReturn:
    """Exit after the usual exit handlers, without Python's teardown of modules.

    The teardown takes a second in a process with torch, and threads of native libraries still run meanwhile.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # private; Python's own forked processes end this way too
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
