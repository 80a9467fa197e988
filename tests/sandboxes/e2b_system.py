"""A sandbox of the E2B test server with a system of its own, which its user can change as root."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from uuid import uuid4

from e2b_machine import Machine
from linux_root import linux_root

_ENTER = ("-U", "-m", "-n", "-p", "-r", "-w", "--preserve-credentials")


def children(process: int) -> list[int]:
    """The children of a process."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


class SystemMachine(Machine):
    """Commands run in one process namespace, on a copy of `linux_root`."""

    def __init__(self, folder: Path, request: dict, internet: bool) -> None:
        super().__init__(folder, request, internet)
        self._outer = Path(tempfile.mkdtemp(prefix="agentrl-e2b-"))  # the folders of tests are closed to other users
        self._outer.chmod(0o755)
        self._system = self._outer / "system"
        subprocess.run(["cp", "-a", "--reflink=auto", linux_root(), self._system], check=True)
        owner = self._system.stat()
        who = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        line = ["--bind", self._system, "/", "--proc", "/proc", "--dev", "/dev", "--unshare-all", "--unshare-user"]
        line += ["--uid", "0", "--gid", "0", "--die-with-parent", "--", "sleep", "infinity"]
        self._first = subprocess.Popen(["bwrap", *line], start_new_session=True, **who)
        self._who, self._inside = who, self._pid_of_first()

    def _pid_of_first(self) -> int:
        """The process of bubblewrap in the namespaces, once it has started its command."""
        pause = threading.Event()
        for _ in range(1000):
            for child in children(self._first.pid):
                if children(child):
                    return child
            pause.wait(0.01)
        raise AssertionError("bubblewrap did not start")

    async def _command(
        self, arguments: list[str], env: dict[str, str] | None = None, cwd: str = "/", stdin: int | None = None
    ) -> asyncio.subprocess.Process:
        enter = ["nsenter", "-t", str(self._inside), *_ENTER, "sh", "-c", 'cd "$0" && exec "$@"', cwd]
        process = await asyncio.create_subprocess_exec(
            *enter,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})},
            start_new_session=True,
            **self._who,
        )
        self.processes[process.pid] = process
        return process

    async def fetched(self, path: str) -> Path:
        """See `Machine.fetched`. A folder, or a file that is not there, becomes one on this machine."""
        place = self.folder / uuid4().hex
        shown = await self.command(["sh", "-c", 'test -d "$0" && exit 9; cat "$0"', path])
        data, _ = await shown.communicate()
        if shown.returncode == 9:
            place.mkdir()
        elif shown.returncode == 0:
            place.write_bytes(data)
        return place

    async def write(self, path: str, data: bytes) -> None:
        """See `Machine.write`."""
        line = ["sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0"', path]
        writing = await self.command(line, stdin=asyncio.subprocess.PIPE)
        _, said = await writing.communicate(data)
        if writing.returncode:
            raise OSError(1, said.decode())

    async def end(self) -> None:
        """See `Machine.end`."""
        self._first.kill()
        self._first.wait()
        await super().end()
        shutil.rmtree(self._outer, ignore_errors=True)
