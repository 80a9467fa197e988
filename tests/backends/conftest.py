"""Ranks that the tests of this folder share: torch has one process group per process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from rank_processes import ranks_of

from agentrl.backends.fsdp.ranks import Ranks

NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with ranks_of(NUM_RANKS, tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks
