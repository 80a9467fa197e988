"""A pool of processes asks processes of the given kind, and never one that did not start."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from agentrl.concurrency import CircuitBreaker, Offload, UnavailableError, pool
from agentrl.concurrency.child import EndedError
from agentrl.concurrency.pool import ChildPool


class Elsewhere:
    """A process on another node; the first one does not start."""

    made: ClassVar[list[Elsewhere]] = []

    def __init__(self, *command: str) -> None:
        self.command, self.alive, self.closed = command, False, False
        self.made.append(self)

    def start(self) -> None:
        if self is self.made[0]:
            raise EndedError("cannot start")
        self.alive = True

    def ask(self, question: dict[str, object]) -> dict[str, object]:
        return {"number": self.made.index(self), **question}

    def kill(self) -> None:
        self.alive = False

    def close(self) -> None:
        self.closed = True


def test_processes_on_other_nodes_are_asked(monkeypatch):
    monkeypatch.setattr(pool, "_remote", [])
    monkeypatch.setattr(Elsewhere, "made", [])
    pool.start_remotely(Elsewhere, 24)
    assert pool.default_size() == 24
    offload = Offload()
    children = ChildPool(offload, CircuitBreaker("test"), 2, "module", "argument")

    async def ask() -> None:
        with pytest.raises(UnavailableError, match="cannot start"):
            await children.ask({}, 10)
        assert await children.ask({"a": 1}, 10) == {"number": 1, "a": 1}
        assert await children.ask({"a": 2}, 10) == {"number": 1, "a": 2}

    asyncio.run(ask())
    children.close()
    offload.close()
    assert [each.command for each in Elsewhere.made] == [("module", "argument")] * 2
    assert all(each.closed for each in Elsewhere.made)
