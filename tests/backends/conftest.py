"""Ranks that the tests of this folder share: torch has one process group per process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

import pytest
from rank_processes import ranks_of

from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.backend import MegatronBackend

NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of one file with the same layout of Megatron together: each change of the layout makes 24 groups."""
    items.sort(key=place_of)


def place_of(item: pytest.Item) -> tuple[str, str]:
    if not item.get_closest_marker("megatron") or not isinstance(item, pytest.Function):
        return "", ""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    layout = parameters.get("layout") or str(parameters.get("case", "")).partition(": ")[2]
    return item.nodeid.partition("::")[0], str(layout)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with ranks_of(NUM_RANKS, tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks


@pytest.fixture
def start(ranks: Ranks) -> Iterator[Callable[..., MegatronBackend]]:
    """Starts backends, which are closed at the end: all models of a process have the same layout."""
    started: list[MegatronBackend] = []

    def start_one(request: ModelRequest, seed: int = 0) -> MegatronBackend:
        started.append(MegatronBackend(ranks, request, seed))
        return started[-1]

    yield start_one
    for backend in started:
        asyncio.run(backend.close())
