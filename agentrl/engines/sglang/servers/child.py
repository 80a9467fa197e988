"""Program that runs a server and kills it when the trainer ends: `python -I child.py <pid of the trainer> <command>`.

This separate program uses only the standard library. The trainer may be killed without cleanup, so an exit handler is
not enough. The kernel's parent-death signal does not fit either: Linux sends it when the thread that started the server
ends, even if the trainer still runs.
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
    """Make Linux kill the server when this program's only thread ends. Runs in the server's process, before `exec`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(trainer: int, command: list[str]) -> int:
    """Run the server, and kill it if the trainer ends. Return the server's exit status; 128 + N after signal N."""
    # SIGTERM reaches the whole process group, but this process must outlive the server, so its handler does nothing.
    # SIG_IGN is not used, because the server would inherit it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    server = subprocess.Popen(command, preexec_fn=die_with_parent if sys.platform == "linux" else None)
    while (status := server.poll()) is None:
        if os.getppid() != trainer:
            os.killpg(0, signal.SIGKILL)
        time.sleep(POLL_S)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
