"""Client of the watchdog process, which ends the run if a call of user code never releases the interpreter lock."""

from __future__ import annotations

import atexit
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count

from agentrl.concurrency import watchdog_process
from agentrl.concurrency.watchdog_process import BEAT_S, HEAD, NUM_SLOTS, SIZE, SLOT

_NAME_BYTES = 100


class Watchdog:
    """Watchdog of this process, started at the first call of user code. Each call costs two memory writes."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._free: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._file = self._lifeline = -1
        self._signals = -1
        self._lock = threading.Lock()
        self._failed = False

    def enter(self, name: str, deadline_s: float) -> int | None:
        """Register a call with its timeout. Return its slot for `leave`; None without a watchdog or a free slot."""
        if self._process is None and not self._start():
            return None
        try:
            slot = self._free.pop()
        except IndexError:  # all slots are in use: a call without a slot is not watched
            return None
        self._write(slot, time.monotonic() + deadline_s, 0.0, name)
        return slot

    def abandoned(self, slot: int, name: str) -> None:
        """Record that a call is past its deadline.

        The call does not hold the interpreter lock; otherwise this method could not run.
        """
        self._write(slot, time.monotonic(), 1.0, name)

    def leave(self, slot: int) -> None:
        """Record that the call has ended, and free its slot."""
        self._write(slot, 0.0, 0.0, "")
        self._free.append(slot)

    def watch_signals(self, pipe: int) -> None:
        """Stop the watchdog process. The next watchdog process also ends the run if the run does not handle a signal.

        Each signal is a byte in `pipe`; a byte that stays unread is a signal that is not handled.
        """
        self.stop()
        self._signals = pipe

    def stop(self) -> None:
        """End the watchdog process; the next call starts another watchdog process."""
        with self._lock:
            process, self._process, self._signals = self._process, None, -1
            if process is not None:
                os.close(self._lifeline)
                process.wait()

    def finish(self) -> None:
        """Stop the watchdog, unless a call still runs: the call may hold the interpreter lock while this process exits.

        A watchdog that is not stopped ends with this process. A watchdog that starts later does not watch the pipe of
        the signals, because the caller closes the pipe.
        """
        if len(self._free) == NUM_SLOTS:
            self.stop()
        self._signals = -1

    def forget(self) -> None:
        """Reset after a fork: only the parent is watched."""
        if self._process is not None:
            self._process.returncode = 0  # the watchdog is not a child of this process
        self.__init__()  # type: ignore[misc]  # discards the parent's state
        self._failed = True

    def _write(self, slot: int, due: float, left: float, name: str) -> None:
        if self._memory is not None:
            SLOT.pack_into(self._memory, HEAD.size + slot * SLOT.size, due, left, name.encode()[:_NAME_BYTES])

    def _start(self) -> bool:
        with self._lock:
            if self._process is None and not self._failed:
                try:
                    self._launch()
                except OSError:  # no process or memory is available: continue without a watchdog
                    self._failed = True
            return self._process is not None

    def _launch(self) -> None:
        if self._memory is None:
            with tempfile.TemporaryFile() as file:
                file.truncate(SIZE)
                self._file, self._memory = os.dup(file.fileno()), mmap.mmap(file.fileno(), SIZE)
            self._free = [*range(NUM_SLOTS)]
            threading.Thread(target=_beat, args=(self._memory,), name="agentrl-beat", daemon=True).start()
        lifeline, self._lifeline = os.pipe()
        handed = (self._file, lifeline, self._signals)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog_process.__file__, str(os.getpid()), *map(str, handed)],
                stdin=subprocess.DEVNULL,
                pass_fds=[each for each in handed if each >= 0],
                start_new_session=True,  # so that Ctrl-C does not reach the watchdog
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)


def _beat(memory: mmap.mmap) -> None:
    for number in count(1):
        HEAD.pack_into(memory, 0, number)
        time.sleep(BEAT_S)


watchdog = Watchdog()
atexit.register(watchdog.finish)
os.register_at_fork(after_in_child=watchdog.forget)
