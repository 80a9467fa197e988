"""Runs a server as its child, and never leaves it behind: `python -I launch.py <pid of the trainer> <command>`.

A program of its own, of the standard library alone. The trainer may be killed with no chance to clean up, and may start
servers from threads that end, so neither an exit handler nor the kernel's parent-death signal to it would do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
POLL_S = 0.5


def die_with_parent() -> None:
    """In the child before it becomes the server: dies with this process, which has one thread only."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(trainer: int, command: list[str]) -> int:
    """Wait for the server's end or the trainer's. Returns the server's exit status, 128 + signal where one ended it."""
    # SIGTERM goes to the group, and this process ends after the server; a handler, as the child would go on ignoring it
    signal.signal(signal.SIGTERM, lambda *_: None)
    server = subprocess.Popen(command, preexec_fn=die_with_parent if sys.platform == "linux" else None)
    while (status := server.poll()) is None:
        if os.getppid() != trainer:
            os.killpg(0, signal.SIGKILL)
        time.sleep(POLL_S)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
