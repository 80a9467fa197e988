"""The stand-in for `docker` and `podman` on PATH (fake_docker.py), and sandboxes that it starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from local_sandboxes import require_bubblewrap

from agentrl.sandboxes import Sandbox
from agentrl.sandboxes.docker.provider import ContainerProvider
from agentrl.sandboxes.docker.settings import ContainerSandbox, DockerSandbox, PodmanSandbox

Result = TypeVar("Result")
SETTINGS: dict[str, type[ContainerSandbox]] = {"docker": DockerSandbox, "podman": PodmanSandbox}


class FakeDaemon:
    """What the stand-in keeps, and what it does wrong."""

    def __init__(self, folder: Path) -> None:
        require_bubblewrap()
        self.folder = folder
        for name in ("faults", "containers", "bin"):
            (folder / name).mkdir(parents=True)
        self.images("python:3.12-slim")
        script = f'#!/bin/sh\nexec {sys.executable} -I -S {Path(__file__).with_name("fake_docker.py")} {folder} "$@"\n'
        for name in SETTINGS:
            (folder / "bin" / name).write_text(script)
            (folder / "bin" / name).chmod(0o755)

    @property
    def path(self) -> str:
        """`PATH` with the commands."""
        return f"{self.folder / 'bin'}:{os.environ['PATH']}"

    def images(self, *names: str) -> None:
        """Set the images that are there."""
        (self.folder / "images").write_text("".join(f"{name}\n" for name in names))

    def fault(self, command: str, what: str) -> None:
        """Let a command (`daemon`: all) do this: hang, dead, or `says TEXT` and exit code 125."""
        (self.folder / "faults" / command).write_text(what)

    def works(self) -> None:
        """End all faults."""
        for path in (self.folder / "faults").iterdir():
            path.unlink()

    def calls(self, command: str) -> list[list[str]]:
        """Arguments of the calls of a command."""
        lines = (self.folder / "log").read_text().splitlines()
        return [call[1:] for call in map(json.loads, lines) if call[0] == command]

    def containers(self) -> dict[str, dict[str, object]]:
        """Running containers by name."""
        return {path.name: json.loads(path.read_text()) for path in (self.folder / "containers").iterdir()}

    def signal(self, which: str, number: signal.Signals) -> None:
        """Send a signal to `pid` (the container) or `client` (the command that started it) of all containers."""
        for container in self.containers().values():
            os.kill(int(str(container[which])), number)


def in_container(work: Callable[[Sandbox], Awaitable[Result]], kind: str = "docker", **settings: object) -> Result:
    """Run `work` in a new container."""

    async def run() -> Result:
        provider = ContainerProvider(SETTINGS[kind](**settings))
        sandbox = await provider.start()
        try:
            return await work(sandbox)
        finally:
            await sandbox.kill()
            await provider.close()

    return asyncio.run(run())
