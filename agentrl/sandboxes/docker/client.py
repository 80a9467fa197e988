"""Runs the command-line program of Docker or Podman."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import SandboxSetup, SandboxUnavailableError
from agentrl.sandboxes.docker.owner import LABEL
from agentrl.sandboxes.docker.settings import ContainerSandbox
from agentrl.sandboxes.owner import own_name
from agentrl.sandboxes.process import LINE_BYTES

COMMAND_S = 60.0
"""Timeout of one command in seconds. It is long, because the daemon may be busy with starting containers."""
PULL_S = 1800.0
END_S = 5.0
"""Seconds to wait for the end of a killed command."""
OWN_FAILURE = 125
"""Exit code of `run` if Docker or Podman itself failed, not the program in the container."""
WORK = "/work"
_ENVIRONMENT = {"HOME": WORK, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
_FILE_RIGHTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
"""Variables that Docker and Podman copy from this machine into a container, unless options of `run` set them.

agentrl sets them to empty values, because the values of this machine may contain passwords."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    exit_code: int
    output: str
    error: str


class Client:
    """Runs commands of Docker or Podman."""

    def __init__(self, settings: ContainerSandbox) -> None:
        self._settings = settings
        self.name = settings.command

    def check_installed(self) -> None:
        """Check that the command is installed.

        Raises:
            ConfigError: the command is not installed.
        """
        if shutil.which(self.name) is None:
            raise ConfigError.keyless(
                f"the command '{self.name}' is not installed, or not in PATH: sandboxes of kind '{self.name}' need it"
            )

    async def run(self, *arguments: str, seconds: float | None = None) -> Finished:
        """Run a command to its end.

        Args:
            seconds: seconds until the command is killed; default: `COMMAND_S`.

        Raises:
            SandboxUnavailableError: the command cannot be started, or did not end in time and was killed.
        """
        seconds = seconds or COMMAND_S
        process = await self._process(arguments, asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(seconds):
                output, error = await process.communicate()
        except TimeoutError:
            raise SandboxUnavailableError(
                f"'{self.name} {arguments[0]}' did not end within {seconds:g} seconds"
            ) from None
        finally:
            await end(process)
        return Finished(await process.wait(), _text(output), " ".join(_text(error).split())[:2000])

    async def succeed(self, *arguments: str, seconds: float | None = None) -> str:
        """Run a command that must succeed; return its output.

        Raises:
            SandboxUnavailableError: the command failed; the message contains its standard error.
        """
        finished = await self.run(*arguments, seconds=seconds)
        if finished.exit_code != 0:
            raise SandboxUnavailableError(f"'{self.name} {arguments[0]}' failed: {finished.error}")
        return finished.output

    async def start(
        self, name: str, program: list[str], setup: SandboxSetup | None = None
    ) -> asyncio.subprocess.Process:
        """Start a container that runs python3 with the arguments `program`.

        The returned process has the container's standard streams.

        Raises:
            SandboxUnavailableError: the command cannot be started.
        """
        image = (setup.image if setup else None) or self._settings.image
        arguments = ("run", *self._common(name, setup), *self._options(setup), "--entrypoint", "python3", image)
        arguments = (*arguments, *program)
        return await self._process(arguments, asyncio.subprocess.PIPE)

    async def _process(self, arguments: tuple[str, ...], stdin: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self.name,
                *arguments,
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must reach only agentrl, which then ends its containers
                limit=LINE_BYTES,
            )
        except OSError as error:
            raise SandboxUnavailableError(f"'{self.name}' cannot be started: {error}") from error

    def _common(self, name: str, setup: SandboxSetup | None) -> list[str]:
        settings = self._settings
        memory = f"{(setup.memory_mb if setup else None) or settings.memory_mb}m"
        return [
            *("--rm", "--interactive", "--name", name, "--label", f"{LABEL}={own_name()}", "--pull", "never"),
            *("--log-driver", "none", "--hostname", "sandbox", "--network", settings.network),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--memory", memory, "--memory-swap", memory),
            *("--cpus", f"{settings.cpus:g}", "--pids-limit", str(settings.max_processes)),
            *_environment({} if setup else _ENVIRONMENT),
        ]

    def _options(self, setup: SandboxSetup | None) -> list[str]:
        if setup is not None:
            return _options_of_setup(setup)
        writable = f"rw,exec,nosuid,nodev,size={self._settings.disk_mb}m,mode=1777"
        mounts = ["--read-only", "--tmpfs", f"{WORK}:{writable}", "--tmpfs", f"/tmp:{writable}", "--workdir", WORK]
        return [*mounts, "--user", self._settings.user]


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a command and close its pipes, because a process that the command started may hold them open."""
    with suppress(ProcessLookupError):
        process.kill()
    process._transport.close()  # type: ignore[attr-defined]  # there is no public way to close the pipes
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await process.wait()


def _options_of_setup(setup: SandboxSetup) -> list[str]:
    """Return the options of a setup: the container runs as root, because files of the image may belong to any user."""
    return [
        *("--user", "0:0"),
        *(option for name in _FILE_RIGHTS for option in ("--cap-add", name)),
        *(["--workdir", setup.folder] if setup.folder else []),
        *(option for name, value in setup.env for option in ("--env", f"{name}={value}")),
    ]


def _environment(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield from ("--env", f"{name}={value}")
    for name in _PROXIES:
        yield from ("--env", f"{name}=", "--env", f"{name.lower()}=")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
