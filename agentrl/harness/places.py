"""The place in which a harness runs: the command that isolates the harness, and the folders of the harness."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.harness.settings import Harness, sandbox_options
from agentrl.sandboxes.local import bubblewrap
from agentrl.sandboxes.local.seccomp import filter_descriptor
from agentrl.sandboxes.local.settings import LocalSandbox

_LOGGER = logging.getLogger(__name__)
_HOME, _WORK = "/tmp/home", "/tmp/work"
_SOCKET_FOLDER = "/tmp/gateway"
PORT = 8000
"""Port of the gateway in a place that does not share the network of this machine."""
_OPEN_FILES = 4096
_PROBE_S = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """Place in which one harness runs.

    Attributes:
        enclose: function that returns the command that runs a program in the place.
        contained: whether all processes in the place end when the place's first process ends.
        socket: path of the gateway's socket in the place, if the place has its own network.
        template: folder that is copied to the working folder.
        path: value of PATH, the folders of programs.
        descriptors: file descriptors that the command inherits; closed after the start.
        folder: folder that is removed at the end.
    """

    enclose: Callable[[list[str]], list[str]]
    python: str
    home: str = _HOME
    workdir: str = _WORK
    contained: bool = True
    socket: str | None = None
    template: str | None = None
    path: str = "/usr/local/bin:/usr/bin:/bin"
    limits: Mapping[str, int] = field(default_factory=dict)
    user: int | None = None
    group: int | None = None
    descriptors: tuple[int, ...] = ()
    folder: Path | None = None

    def remove(self) -> None:
        """Remove the folder of the place. The call blocks."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def open_place(harness: Harness, gateway: Path | None, template: str | None) -> Place:
    """Return a new place for one rollout.

    Args:
        gateway: socket of the gateway; None: the harness reaches the gateway over the network of this machine.
        template: folder whose content is copied to the working folder.
    """
    settings = harness.settings
    if settings.sandbox is not None:
        return _sandboxed(LocalSandbox.model_validate(sandbox_options(settings.sandbox)), gateway, template)
    if (problem := namespaces_problem()) is not None:
        return _uncontained(harness, problem, template)
    return _contained(harness, gateway, template)


def needs_socket(harness: Harness) -> bool:
    """Whether a harness cannot reach servers of this machine over the network."""
    return harness.settings.sandbox is not None or harness.settings.network == "gateway"


@cache
def namespaces_problem() -> str | None:
    """Return why bubblewrap cannot be used here; None if it can."""
    try:
        line = [bubblewrap.bubblewrap(), *_NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "--", "true"]
        tried = subprocess.run(line, capture_output=True, timeout=_PROBE_S, check=False)
    except ConfigError:
        return "bubblewrap is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    said = " ".join(tried.stderr.decode("utf-8", "replace").split())
    return f"bubblewrap does not work: {said}" if tried.returncode else None


_NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session", "--cap-drop", "ALL")


def _contained(harness: Harness, gateway: Path | None, template: str | None) -> Place:
    """A place with its own processes and /tmp; the files of this machine are read-only."""
    settings = harness.settings
    size = str(settings.disk_mb * 2**20)
    options = [*_NAMESPACES, *(("--unshare-net",) if gateway else ()), "--ro-bind", "/", "/", "--dev", "/dev"]
    options += ["--proc", "/proc", "--size", size, "--tmpfs", "/tmp"]
    for folder in _below_tmp([*_own_folders(harness, template), *settings.readonly]):
        options += ["--ro-bind", folder, folder]
    options += _socket_options(gateway)
    start = [bubblewrap.bubblewrap(), *options, "--chdir", "/tmp", "--"]
    return Place(
        lambda program: [*start, *program],
        sys.executable,
        socket=_socket_inside(gateway),
        template=template,
        path=_own_path(),
    )


def _uncontained(harness: Harness, problem: str, template: str | None) -> Place:
    """A place without isolation, with folders below /tmp.

    Raises:
        ConfigError: the settings need isolation.
    """
    if harness.settings.network == "gateway":
        raise ConfigError.keyless(f"{harness.name}: 'network: gateway' needs bubblewrap: {problem}")
    _warn_once(problem)
    folder = Path(tempfile.mkdtemp(prefix="agentrl-harness-"))
    home, workdir = str(folder / "home"), str(folder / "work")
    return Place(
        list, sys.executable, home, workdir, contained=False, template=template, path=_own_path(), folder=folder
    )


def _sandboxed(settings: LocalSandbox, gateway: Path | None, template: str | None) -> Place:
    """A sandbox like the sandboxes of tools. Programs in the sandbox can reach only the gateway over the network."""
    user, group = bubblewrap.user_of(settings) or (None, None)
    seccomp = filter_descriptor()
    extra = [*(("--ro-bind", template, "/tmp/template") if template else ()), *_socket_options(gateway)]

    def enclose(program: list[str]) -> list[str]:
        return bubblewrap.command(settings, seccomp, program, extra)

    return Place(
        enclose,
        bubblewrap.python_of(settings),
        workdir=bubblewrap.WORK,
        socket=_socket_inside(gateway),
        template="/tmp/template" if template else None,
        limits={**settings.limits(), "RLIMIT_NOFILE": _OPEN_FILES},
        user=user,
        group=group,
        descriptors=(seccomp,),
    )


def _socket_options(gateway: Path | None) -> list[str]:
    return ["--ro-bind", str(gateway.parent), _SOCKET_FOLDER] if gateway else []


def _socket_inside(gateway: Path | None) -> str | None:
    return f"{_SOCKET_FOLDER}/{gateway.name}" if gateway else None


def _own_path() -> str:
    """The PATH of this process, with the folder of its Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _own_folders(harness: Harness, template: str | None) -> Iterator[Path]:
    """Yield the folders that a harness may need.

    These are the folders of its settings, its programs and this Python, the template, and the current folder.
    """
    yield from (harness.folder, Path.cwd(), Path(sys.prefix), Path(sys.base_prefix))
    yield from (Path(folder) for folder in _own_path().split(os.pathsep) if folder)
    if template:
        yield Path(template)


def _below_tmp(folders: list[Path]) -> list[str]:
    """Return the `folders` that exist below /tmp, parents first. The place's own /tmp would hide these folders."""
    found = {folder.absolute() for folder in folders if Path("/tmp") in folder.absolute().parents}
    return sorted(str(folder) for folder in found if folder.is_dir())


@cache
def _warn_once(problem: str) -> None:
    _LOGGER.warning(
        "%s: harnesses run without their own namespaces. They can read and write all your files. Processes that they"
        " leave running are ended only if they are descendants (docs/harnesses.md)",
        problem,
    )
