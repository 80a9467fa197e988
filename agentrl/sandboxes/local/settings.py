"""Settings of local sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from agentrl.sandboxes.settings import PoolSettings


class LocalSandbox(PoolSettings):
    """A local sandbox and its limits."""

    kind: Literal["local"] = "local"
    python: Path | None = None
    """Interpreter for the model's code. Default: that of agentrl, else python3 of the system."""
    readonly: tuple[Path, ...] = ()
    """Folders of this machine that the sandbox can read, at the same paths: libraries, data."""
    memory_mb: PositiveInt = 1024
    """Address space of each process, MiB."""
    disk_mb: PositiveInt = 64
    """Size of the working folder and of /tmp, in memory, MiB each; also the largest file."""
    max_processes: PositiveInt = 64
    """Processes and threads."""
    cpu_s: PositiveInt = 600
    """CPU seconds of each process."""

    def limits(self) -> dict[str, int]:
        """Return the resource limits of each process; see setrlimit(2)."""
        return {
            "RLIMIT_AS": self.memory_mb * 2**20,
            "RLIMIT_FSIZE": self.disk_mb * 2**20,
            "RLIMIT_NPROC": self.max_processes,
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_NOFILE": 256,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
        }
