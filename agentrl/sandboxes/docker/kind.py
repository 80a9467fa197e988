"""The sandbox kinds `docker` and `podman`."""

from agentrl.sandboxes.docker.provider import ContainerProvider
from agentrl.sandboxes.docker.settings import DockerSandbox, PodmanSandbox
from agentrl.sandboxes.loading import SandboxKind

DOCKER = SandboxKind(DockerSandbox, ContainerProvider)
PODMAN = SandboxKind(PodmanSandbox, ContainerProvider)
