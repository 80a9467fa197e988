"""The kinds of sandboxes that the contract suite runs on. A new kind is one function and one entry in `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2b_server import KEY, e2b_server
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


def e2b(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[SandboxProvider]:
    environment.setenv("E2B_API_KEY", KEY)
    with e2b_server(folder) as server:
        yield provider_of("e2b", api_url=server.url, sandbox_url=server.url)


KINDS: dict[str, OpenProvider] = {"local": local, "e2b": e2b}


@contextmanager
def open_provider(kind: str, folder: Path) -> Iterator[SandboxProvider]:
    """Make what a kind needs, and its provider."""
    with pytest.MonkeyPatch.context() as environment:
        yield from KINDS[kind](folder, environment)
