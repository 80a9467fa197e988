"""Fixtures for all tests of tools."""

from __future__ import annotations

import pytest

from agentrl.concurrency import run


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(run, "GRACE_S", 0.2)
