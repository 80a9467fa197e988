"""What all tests of tools run under."""

from __future__ import annotations

import pytest

from agentrl.concurrency import run


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(run, "GRACE_S", 0.2)
