"""The command that starts a local sandbox."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import SandboxSetup
from agentrl.sandboxes.local.settings import LocalSandbox
from agentrl.sandboxes.process import WRITABLE

WORK = "/work"
"""The working folder in a sandbox."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/localtime")
_KERNEL = ("--proc", "/proc", "--dev", "/dev")
_ISOLATED = (
    *("--unshare-all", "--unshare-user", "--disable-userns"),
    *("--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"),
)
_FIRST_USER, _NUM_USERS = 1_000_000_000, 2**30


@cache
def bubblewrap() -> str:
    """Return the path of bwrap.

    Raises:
        ConfigError: bwrap is not installed.
    """
    if found := shutil.which("bwrap"):
        return found
    raise ConfigError.keyless(
        "local sandboxes need bubblewrap: apt-get install bubblewrap, or your system's package of that name"
    )


def new_user() -> int | None:
    """Return a new user id for a sandbox; None if this process is not root.

    Each sandbox has its own user, so that sandboxes do not share the limits of a user.
    """
    return _FIRST_USER + secrets.randbelow(_NUM_USERS) if os.geteuid() == 0 else None


@cache
def interpreter(wanted: Path | None) -> Path:
    """Return the interpreter of the sandbox: the first candidate that the user of a sandbox can run.

    Raises:
        ConfigError: no candidate can be run.
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
    """Return the base interpreter of agentrl's virtual environment.

    The model's code must not use the packages of the virtual environment.
    """
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _runs(path: Path) -> bool:
    user = new_user()
    try:
        return subprocess.run([path, "-I", "-c", ""], capture_output=True, user=user, check=False).returncode == 0
    except OSError:
        return False


def command(
    settings: LocalSandbox,
    seccomp: int,
    program: Sequence[str],
    extra: Sequence[str] = (),
    setup: SandboxSetup | None = None,
) -> list[str]:
    """Return the command that runs `program` in a new sandbox.

    Args:
        seccomp: file descriptor of the filter of system calls.
        extra: further options of bubblewrap, after those that make the folders.
    """
    setup, root = setup or SandboxSetup(), settings.opened_root()
    start = [bubblewrap()] if root is None else root.start(settings.disk_mb * 2**20)
    return [
        *start,
        *_ISOLATED,
        *_environment(setup),
        *(_own_system(setup, settings) if root is None else [*root.mounts(), *_KERNEL]),
        *(option for folder in (*WRITABLE, *setup.folders) for option in ("--dir", folder)),
        *(word for folder in settings.readonly for word in ("--ro-bind", str(folder), str(folder))),
        *(word for folder, place in setup.readable for word in ("--ro-bind", str(folder), place)),
        *extra,
        *("--remount-ro", "/dev", *(("--remount-ro", "/") if root is None else ())),
        *("--chdir", setup.folder or WORK),
        *(("--uid", "1000", "--gid", "1000") if root is None else ("--uid", "0", "--gid", "0")),
        *("--hostname", "sandbox", "--seccomp", str(seccomp)),
        *("--", *program),
    ]


def user_of(settings: LocalSandbox) -> tuple[int, int] | None:
    """Return user and group of a new sandbox; None if this process is not root.

    In this case, the sandbox runs as the user of this process.
    """
    if (root := settings.opened_root()) is not None:
        return root.user
    user = new_user()
    return None if user is None else (user, user)


def python_of(settings: LocalSandbox) -> str:
    """Return the path of the interpreter in the sandbox."""
    root = settings.opened_root()
    return str(interpreter(settings.python)) if root is None else root.python


def writable_folders(settings: LocalSandbox, setup: SandboxSetup) -> tuple[str, ...]:
    """Return the writable folders, which are in memory; each is a separate mount."""
    return ("/",) if settings.root is not None else (*WRITABLE, *_writable_roots(setup))


def _writable_roots(setup: SandboxSetup) -> list[str]:
    """Return the top-level folders that contain writable folders of `setup`, except those in `WRITABLE`."""
    roots = {f"/{folder.split('/')[1]}": None for folder in setup.folders}
    return [each for each in roots if each not in ("/", *WRITABLE)]


def is_system(path: str, *, with_root: bool = False) -> bool:
    """Whether a path is in a folder that is read-only in a sandbox.

    Args:
        with_root: whether the sandbox has its own `root`.
    """
    return f"/{path.split('/')[1]}" in (*(() if with_root else (*_SYSTEM, "/etc")), "/proc", "/dev", "/sys")


def _own_system(setup: SandboxSetup, settings: LocalSandbox) -> list[str]:
    """Return the options that make the system folders of this machine visible in the sandbox."""
    # mounted first, because a read-only folder may be inside a writable one
    writable = _in_memory(_writable_roots(setup), settings)
    return [*writable, *_readable(settings), *_KERNEL, *_in_memory(WRITABLE, settings)]


def _in_memory(folders: Iterable[str], settings: LocalSandbox) -> list[str]:
    size = str(settings.disk_mb * 2**20)
    return [option for folder in folders for option in ("--size", size, "--tmpfs", folder)]


def _environment(setup: SandboxSetup) -> Iterator[str]:
    values = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    for name, value in {**values, **dict(setup.env)}.items():
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
