"""Interface of sandboxes, for tools and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

MAX_OUTPUT_CHARS = 20_000
"""Maximum length of the output of one run; the middle of a longer output is left out."""
MAX_FILE_BYTES = 32 * 2**20
"""Maximum size of a file that is copied into or out of a sandbox."""
CANCELLED = "a call that ran in the sandbox was cancelled, which ended the sandbox"
"""Error text of calls that follow a cancelled call."""


class SandboxEndedError(Exception):
    """A program ended its own sandbox, or a sandbox is used after its end; the message is the reason.

    Files and variables of the sandbox are lost.
    """


class SandboxUnavailableError(Exception):
    """A sandbox cannot be started or reached, for a reason that does not depend on the programs in it."""


class SandboxFileError(Exception):
    """A file of a sandbox cannot be read or written; the message is the reason."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a piece of code or a command.

    Attributes:
        output: standard output and standard error, in the order of writing; at most `MAX_OUTPUT_CHARS` characters.
        error: the traceback of an uncaught Python exception; "" if there is none.
        exit_code: exit code of a command; None for Python code.
        timed_out: whether the code or command was stopped at its deadline.
        state_lost: whether the Python interpreter ended: its variables are lost, files are kept.
    """

    output: str
    error: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    state_lost: bool = False


@dataclass(frozen=True, slots=True)
class SandboxSetup:
    """Settings of one sandbox that override the settings of its kind (such as `docker`).

    Attributes:
        folder: the working folder; "": the working folder of the image or of the kind.
        env: environment variables of all programs in the sandbox.
        folders: folders that must exist and be writable. Kinds with images ignore `folders`.
        image: name of the image; None: the image of the kind. Kinds without images ignore `image`.
        build: folder with a Dockerfile, from which `image` is built if it does not exist yet.
        build_s: timeout in seconds for building or pulling the image.
        memory_mb: memory limit in MiB; None: the limit of the kind.
        readable: (folder of this machine, path at which the sandbox can read it). Only local sandboxes support this.
    """

    folder: str = ""
    env: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    image: str | None = None
    build: Path | None = None
    build_s: float = 600.0
    memory_mb: int | None = None
    readable: tuple[tuple[Path, str], ...] = ()


class Sandbox(Protocol):
    """An isolated environment with its own files and one Python interpreter. It runs one call at a time.

    Every method raises `SandboxEndedError` if a program in the sandbox ended the sandbox, and
    `SandboxUnavailableError` if the sandbox failed for another reason.
    """

    async def run_python(self, code: str, deadline_s: float) -> RunResult:
        """Run code in the sandbox's interpreter. Variables are kept for the next call."""
        ...

    async def run_command(self, command: str, deadline_s: float) -> RunResult:
        """Run a shell command in the working folder."""
        ...

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file; missing folders are created. `path` is relative to the working folder.

        Raises:
            SandboxFileError: the file cannot be written.
        """
        ...

    async def download(self, path: str) -> bytes:
        """Read a file of at most `MAX_FILE_BYTES`.

        Raises:
            SandboxFileError: the file cannot be read, or is larger than `MAX_FILE_BYTES`.
        """
        ...

    async def kill(self) -> None:
        """End the sandbox with all its processes and files. A second call does nothing."""
        ...


@runtime_checkable
class EndsProcesses(Sandbox, Protocol):
    """A sandbox whose kind supports a `SandboxSetup`.

    A call that is cancelled while it runs ends the sandbox; later calls raise `SandboxUnavailableError`.
    """

    async def end_processes(self) -> None:
        """End everything that runs in the sandbox. Its files are kept."""
        ...

    def stop_command(self) -> None:
        """Ask the sandbox to end the running command or code. Repeat this until the running call returns.

        Sandboxes that can end only commands ignore this call while Python code runs.
        """
        ...


class SandboxProvider(Protocol):
    """Starts sandboxes of one kind."""

    async def check(self) -> None:
        """Check that sandboxes of this kind can run on this machine and isolate as required.

        Raises:
            ConfigError: a requirement is missing. The message names it and says how to install or enable it.
        """
        ...

    async def start(self, setup: SandboxSetup | None = None) -> Sandbox:
        """Start a sandbox.

        Args:
            setup: settings of this sandbox only; unsupported ones are refused before the start (`PoolSettings.setups`).

        Raises:
            SandboxUnavailableError: the sandbox did not start.
        """
        ...

    async def close(self) -> None:
        """Remove sandboxes and other resources that this process left behind. Does not raise."""
        ...


def shortened(text: str, num_chars: int = MAX_OUTPUT_CHARS) -> str:
    """Leave out the middle of a text that is too long."""
    if len(text) <= num_chars:
        return text
    half = num_chars // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
