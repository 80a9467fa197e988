"""Fixtures that request a run as a page does: the real app, with its index fully read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from viewer_runs import Asked


@pytest.fixture
def view() -> Iterator[Callable[..., Asked]]:
    opened: list[Asked] = []

    def open_view(*folders: Path) -> Asked:
        opened.append(Asked(*folders))
        return opened[-1]

    yield open_view
    for asked in opened:
        asked.close()
