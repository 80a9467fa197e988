"""Settings of local sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from agentrl.errors import ConfigError
from agentrl.sandboxes.local.overlay import Root, open_root
from agentrl.sandboxes.settings import PoolSettings, Setups


class LocalSandbox(PoolSettings):
    """A local sandbox and its limits."""

    kind: Literal["local"] = "local"
    python: Path | None = None
    """Interpreter for the model's code. Default: agentrl's interpreter, else the system's python3. With `root`, the
    default is the python3 of `root`."""
    root: Path | None = None
    """Folder with a Linux system, used in place of this machine's programs. A sandbox can change every file, but
    the changes stay in the sandbox's own layer of size `disk_mb`; the folder itself does not change."""
    readonly: tuple[Path, ...] = ()
    """Folders of this machine, for example with libraries or data, that the sandbox can read at the same paths."""
    memory_mb: PositiveInt = 1024
    """Maximum address space of each process in MiB."""
    disk_mb: PositiveInt = 64
    """Size in MiB of the working folder, and of /tmp; both are in memory. With `root`: size of all changes to `root`.
    Also the maximum size of a file."""
    max_processes: PositiveInt = 64
    """Maximum number of processes and threads."""
    cpu_s: PositiveInt = 600
    """Maximum CPU time of each process in seconds."""

    def opened_root(self) -> Root | None:
        """Check and return the root folder; None if the sandbox uses the system of this machine.

        Raises:
            ConfigError: the folder cannot be used.
        """
        return None if self.root is None else open_root(self.root, self.python)

    def lacking(self) -> str:
        """See `PoolSettings.lacking`."""
        try:
            self.opened_root()
        except ConfigError as error:
            return str(error)
        return ""

    @property
    def setups(self) -> Setups:
        """See `PoolSettings.setups`."""
        return "folders" if self.root is None else "system"

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
