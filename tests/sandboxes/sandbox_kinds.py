"""The kinds of sandboxes that the contract suite runs on. A new kind is one function and one entry in `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2b_server import KEY, e2b_server
from fake_containers import FakeDaemon
from linux_root import linux_root
from local_sandboxes import require_bubblewrap

from agentrl.sandboxes import SandboxProvider
from agentrl.sandboxes.loading import SANDBOXES

OpenProvider = Callable[[Path, pytest.MonkeyPatch], "Iterator[SandboxProvider]"]


def provider_of(kind: str, **settings: object) -> SandboxProvider:
    """Return the provider of a kind with these settings, as a run makes it."""
    found = SANDBOXES.get(kind)
    provider: SandboxProvider = found.provider(found.settings.model_validate({"kind": kind, **settings}))
    return provider


def local(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[SandboxProvider]:
    require_bubblewrap()
    yield provider_of("local")


def local_root(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[SandboxProvider]:
    yield provider_of("local", root=str(linux_root()))


def e2b(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[SandboxProvider]:
    environment.setenv("E2B_API_KEY", KEY)
    with e2b_server(folder) as server:
        yield provider_of("e2b", api_url=server.url, sandbox_url=server.url)


def docker(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[SandboxProvider]:
    environment.setenv("PATH", FakeDaemon(folder / "daemon").path)
    yield provider_of("docker")


def real(kind: str) -> OpenProvider:
    """The command itself."""

    def opened(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[SandboxProvider]:
        yield provider_of(kind)

    return opened


KINDS: dict[str, OpenProvider] = {"local": local, "local root": local_root, "e2b": e2b, "docker": docker}
REAL: dict[str, OpenProvider] = {f"real {kind}": real(kind) for kind in ("docker", "podman")}
ALL_KINDS = [*KINDS, *(pytest.param(name, marks=pytest.mark.containers) for name in REAL)]
"""`sandbox_fusion` keeps no variables, so it has its own tests."""


@contextmanager
def open_provider(kind: str, folder: Path) -> Iterator[SandboxProvider]:
    """Make what a kind needs, and its provider."""
    with pytest.MonkeyPatch.context() as environment:
        yield from {**KINDS, **REAL}[kind](folder, environment)
