"""The command that starts a local sandbox."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.sandboxes.local.settings import LocalSandbox

WORK = "/work"
"""The working folder in a sandbox."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/localtime")
_FIRST_USER, _NUM_USERS = 1_000_000_000, 2**30


@cache
def bubblewrap() -> str:
    """Return the path of bwrap.

    Raises:
        ConfigError: it is not installed.
    """
    if found := shutil.which("bwrap"):
        return found
    raise ConfigError.keyless(
        "local sandboxes need bubblewrap: apt-get install bubblewrap, or your system's package of that name"
    )


def new_user() -> int | None:
    """Return the user of a new sandbox: its own one if this process may choose, so that it shares no limits."""
    return _FIRST_USER + secrets.randbelow(_NUM_USERS) if os.geteuid() == 0 else None


@cache
def interpreter(wanted: Path | None) -> Path:
    """Return the interpreter of the sandbox: the first that the user of a sandbox can run.

    Raises:
        ConfigError: there is none.
    """
    candidates = [wanted] if wanted else [_own_interpreter(), Path("/usr/bin/python3"), Path("/usr/local/bin/python3")]
    for path in candidates:
        if _runs(path):
            return path.resolve()
    listed = ", ".join(map(str, candidates))
    raise ConfigError.keyless(
        f"no Python interpreter that an unprivileged user can run ({listed}): set `python` of the sandbox to one,"
        " such as /usr/bin/python3 (apt-get install python3-minimal)"
    )


def _own_interpreter() -> Path:
    """Return agentrl's interpreter without its virtual environment, whose packages the model's code does not get."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _runs(path: Path) -> bool:
    user = new_user()
    try:
        return subprocess.run([path, "-I", "-c", ""], capture_output=True, user=user, check=False).returncode == 0
    except OSError:
        return False


def command(settings: LocalSandbox, seccomp: int, program: Sequence[str], extra: Sequence[str] = ()) -> list[str]:
    """Return the command that runs `program` in a new sandbox.

    Args:
        seccomp: file descriptor of the filter of system calls.
        extra: further options of bubblewrap, after those that make the folders.
    """
    size = str(settings.disk_mb * 2**20)
    readonly = [word for folder in settings.readonly for word in ("--ro-bind", str(folder), str(folder))]
    writable = [option for folder in (WORK, "/tmp") for option in ("--size", size, "--tmpfs", folder)]  # in the sandbox
    return [
        bubblewrap(),
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--new-session",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--clearenv",
        *_environment(),
        *_readable(settings),
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        *writable,
        *readonly,
        *extra,
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
        "--chdir",
        WORK,
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--hostname",
        "sandbox",
        "--seccomp",
        str(seccomp),
        "--",
        *program,
    ]


def _environment() -> Iterator[str]:
    values = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    for name, value in values.items():
        yield from ("--setenv", name, value)


def _readable(settings: LocalSandbox) -> Iterator[str]:
    for path in _SYSTEM:
        if os.path.islink(path):  # noqa: PTH114  # /bin -> usr/bin on merged systems
            yield from ("--symlink", os.readlink(path), path)  # noqa: PTH115
        elif os.path.isdir(path):  # noqa: PTH112
            yield from ("--ro-bind", path, path)
    for path in _FILES:
        yield from ("--ro-bind-try", path, path)
    prefix = interpreter(settings.python).parent.parent
    if not prefix.is_relative_to("/usr"):
        yield from ("--ro-bind", str(prefix), str(prefix))
