"""Shared by the tests of weight transfers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentrl.engines.sglang.weights import server_loader


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake server has one rank, also if this process has joined a process group for other tests."""
    monkeypatch.setattr(server_loader, "distributed", SimpleNamespace(is_initialized=lambda: False))
