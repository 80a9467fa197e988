"""An asyncio event loop with virtual time: instead of waiting, its clock jumps to the next scheduled event."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.errors import AgentRLError

T = TypeVar("T")
_Ready = list[tuple[selectors.SelectorKey, int]]


class StalledError(AgentRLError):
    """All tasks wait, and nothing is scheduled that could wake them."""


class _Jump(selectors.SelectSelector):
    """Selector that adds each timeout to `now`, in seconds, instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> _Ready:
        """Return no events; advance the clock by `timeout`."""
        if timeout is None:
            raise StalledError("the simulation has stalled: nothing runs, and nothing is scheduled")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with virtual time, which starts at 0. It serves no sockets, no threads and no processes."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._jump.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:  # Any: yielded and sent values do not matter
    """Run `main` in virtual time.

    Raises:
        StalledError: nothing is scheduled, but `main` has not ended.
        RuntimeError: an event loop is running in this thread.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
