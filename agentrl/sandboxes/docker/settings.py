"""Settings of sandboxes in containers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from agentrl.sandboxes.settings import PoolSettings, Setups


class ContainerSandbox(PoolSettings):
    """A container and its limits."""

    command: ClassVar[str]
    """The program that starts containers."""

    image: str = "python:3.12-slim"
    """Image with python3 and bash; pulled if it is missing."""
    user: str = "1000:1000"
    """User and group of the model's code. In the sandbox of a task folder, the code runs as root instead."""
    network: str = "none"
    """Network of the container. With a value other than none, the model's code can reach that network."""
    memory_mb: PositiveInt = 1024
    """Memory of the container in MiB, including its files in memory; there is no swap space."""
    disk_mb: PositiveInt = 64
    """Size in MiB of the working folder, and of /tmp; both are in memory. Also the maximum size of a file. In the
    sandbox of a task folder, these folders are not in memory, and only the size of each file is limited."""
    cpus: PositiveFloat = 1.0
    """Number of processors that the container can use."""
    max_processes: PositiveInt = 64
    """Maximum number of processes and threads."""
    max_running: PositiveInt = 16
    """Maximum number of containers at a time; further rollouts wait."""

    @property
    def setups(self) -> Setups:
        """See `PoolSettings.setups`."""
        return "image"

    def limits(self) -> dict[str, int]:
        """Return the resource limits of each process; see setrlimit(2)."""
        return {"RLIMIT_FSIZE": self.disk_mb * 2**20, "RLIMIT_NOFILE": 256, "RLIMIT_CORE": 0}


class DockerSandbox(ContainerSandbox):
    """A container of Docker."""

    command: ClassVar[str] = "docker"
    kind: Literal["docker"] = "docker"


class PodmanSandbox(ContainerSandbox):
    """A container of Podman."""

    command: ClassVar[str] = "podman"
    kind: Literal["podman"] = "podman"
