"""Limits how many sandboxes a user starts per second on this machine. All processes of the user share one file."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.sandboxes.owner import place

_TIME = struct.Struct("<d")
_MAX_WAIT_S = 3600.0
"""If the file requires a longer wait, the file is considered wrong and is ignored."""


class StartRate:
    """Keeps a minimum time between two starts of sandboxes.

    Args:
        service: processes that name the same service share the limit.
        per_s: maximum starts per second.
    """

    def __init__(self, service: str, per_s: float, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._service, self._interval_s, self._sleep = service, 1 / per_s, sleep

    async def wait(self) -> None:
        """Reserve the next start time and wait for it. If the caller is cancelled, its start time stays unused."""
        if (wait_s := self.reserve()) > 0:
            await self._sleep(wait_s)

    def reserve(self) -> float:
        """Reserve the next start time; return the seconds until then."""
        descriptor = os.open(self._file(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # this lock is held for microseconds only
            now = time.monotonic()  # all processes share this clock, which starts when the machine boots
            start = max(now, _next_start(descriptor, now))
            os.pwrite(descriptor, _TIME.pack(start + self._interval_s), 0)
            return start - now
        finally:
            os.close(descriptor)

    def _file(self) -> Path:
        """Return the shared file. Each boot has its own file, because the monotonic clock restarts at boot."""
        return _folder() / blake2b(f"{place()} {self._service}".encode(), digest_size=12).hexdigest()


def _next_start(descriptor: int, now: float) -> float:
    data = os.pread(descriptor, _TIME.size, 0)
    found: float = _TIME.unpack(data)[0] if len(data) == _TIME.size else 0.0
    return found if found < now + _MAX_WAIT_S else 0.0  # NaN also becomes 0


def _folder() -> Path:
    """Return the folder with the shared files of this user.

    Raises:
        ConfigError: the folder belongs to another user, who could block all starts.
    """
    folder = Path(tempfile.gettempdir()) / f"agentrl-starts-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError.keyless(f"'{folder}' must be a folder that only this user can write: remove it")
    return folder
