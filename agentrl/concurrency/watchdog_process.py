"""The watchdog process: ends a run if a call holds the interpreter lock past its deadline. Standard library only.

`python -I -S watchdog_process.py PID MEMORY LIFELINE SIGNALS`: PID is the process id of the run, the others are
inherited file descriptors (SIGNALS may be -1). A thread cannot be the watchdog: a C function that keeps the interpreter
lock stops all threads and signal handlers.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

HEAD = struct.Struct("=q")
"""The heartbeat: a counter that a thread of the run increments every half second, if it gets the interpreter lock."""
SLOT = struct.Struct("=dd104s")
"""A call: its deadline (monotonic clock; 0 for a free slot), 1 if the call is abandoned else 0, and its name."""
NUM_SLOTS = 512
SIZE = HEAD.size + NUM_SLOTS * SLOT.size
BEAT_S = 0.5

GRACE_S = 10.0
"""Seconds until the run is ended if a call is past its deadline and the heartbeat has stopped.

If the heartbeat has stopped and the run does not handle a signal, the run is ended after the same time; if several
signals are not handled, it is ended after `_SECOND_SIGNAL_S`.
"""
GRACE_ABANDONED_S = 120.0
"""Used in place of `GRACE_S` for an abandoned call.

This time is longer than `GRACE_S`: an abandoned call has released the lock at least once, so perhaps the call is not at
fault, and the run is just suspended.
"""
_SECOND_SIGNAL_S = 1.0
_POLL_S = 0.5


class Watch:
    """State of the watched run."""

    def __init__(self, pid: int, memory: mmap.mmap, signals: int) -> None:
        self._pid, self._memory, self._signals = pid, memory, signals
        self._beat, self._beat_at, self._looked_at = -1, 0.0, 0.0
        self._asked_at: float | None = None

    def verdict(self, now: float) -> str | None:
        """Return why the run must be ended, or None.

        This method is called periodically. If the watchdog process itself was suspended, its timers restart.
        """
        (beat,) = HEAD.unpack_from(self._memory)
        was_asleep, self._looked_at = now - self._looked_at > 4 * _POLL_S, now
        if beat != self._beat or was_asleep or is_stopped(self._pid):
            self._beat, self._beat_at, self._asked_at = beat, now, None
            return None
        silent_s = now - self._beat_at
        return self._unheard(now) or self._overdue(now, silent_s)

    def _unheard(self, now: float) -> str | None:
        if not (num := unread(self._signals)):
            self._asked_at = None
            return None
        self._asked_at = now if self._asked_at is None else self._asked_at
        if now - self._asked_at >= (GRACE_S if num == 1 else _SECOND_SIGNAL_S):
            return "interrupted, ended at once: something holds Python's interpreter lock"
        return None

    def _overdue(self, now: float, silent_s: float) -> str | None:
        late = [(name, due) for name, due, grace_s in self._calls() if silent_s >= grace_s and now - due >= grace_s]
        if not late:
            return None
        names = ", ".join(dict.fromkeys(name for name, _ in late[:3]))
        past_s = now - min(due for _, due in late)
        return (
            f"{names}: {past_s:.0f} seconds past the deadline. The call holds Python's interpreter lock (GIL),"
            " so nothing else"
            " can run. The run was ended. Run such code in a process, which can be killed: isolation: process for a"
            " tool, reward.reward_manager.name=prime for a reward"
        )

    def _calls(self) -> Iterator[tuple[str, float, float]]:
        for number in range(NUM_SLOTS):
            due, left, name = SLOT.unpack_from(self._memory, HEAD.size + number * SLOT.size)
            if due:
                yield name.rstrip(b"\0").decode("utf-8", "replace"), due, GRACE_ABANDONED_S if left else GRACE_S


def unread(pipe: int) -> int:
    """Return the number of unread bytes in a pipe."""
    if pipe < 0:
        return 0
    number = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, number)
    return number[0]


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal such as Ctrl-Z, or by a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] in "Tt"
    except OSError:  # the system is not Linux
        with os.popen(f"ps -o state= -p {pid}") as answer:
            return answer.read().startswith("T")


def main(pid: int, memory: int, lifeline: int, signals: int) -> None:
    """Watch until the run ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch = Watch(pid, mmap.mmap(memory, SIZE, prot=mmap.PROT_READ), signals)
    while not select.select([lifeline], [], [], _POLL_S)[0] and os.getppid() == pid:
        if why := watch.verdict(time.monotonic()):
            if os.isatty(1):
                os.write(1, b"\x1b[?25h")  # a live panel hides the cursor
            os.kill(pid, signal.SIGKILL)
            os.write(2, f"\nagentrl: {why}\n".encode())
            return


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
