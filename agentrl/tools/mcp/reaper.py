"""Client of the helper process that kills MCP servers when the run ends."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from secrets import token_hex

from agentrl.tools.mcp import reaper_process

_CLOSE_S = 5.0


class Reaper:
    """The helper process, which starts before the first server.

    Attributes:
        environment: environment variable that marks the servers and the processes that they start.
    """

    def __init__(self) -> None:
        mark = token_hex(8)
        self.environment = {reaper_process.VARIABLE: mark}
        self._command = [sys.executable, "-I", "-S", reaper_process.__file__, mark]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the helper if it has not started yet. Call this before a server starts.

        Raises:
            OSError: the system cannot start another process.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C and the end of a terminal do not reach the helper
            )

    def started(self, group: int) -> None:
        """Record that a process group has started."""
        self._write(f"+{group}\n")

    def ended(self, group: int) -> None:
        """Record that a process group has ended, because the system may reuse the group's number."""
        self._write(f"-{group}\n")

    def close(self) -> None:
        """Kill the remaining servers, and wait for the end of the helper."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_S)

    def _write(self, line: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):  # someone killed the helper; each server still ends with its MCP session
                self._process.stdin.write(line.encode())
