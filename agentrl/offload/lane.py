"""The book kept of calls that never came back."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TypeVar, cast

from agentrl.offload.reply import Reply, UnavailableError

T = TypeVar("T")

MAX_ABANDONED = 512
"""Calls left behind at a time, each of which may hold a thread."""
RETRY_S = 10.0
"""How long after a lane closed, or was last tried, another call is let through."""


@dataclass(slots=True)
class Lane:
    """The calls of one kind that were left behind and still run.

    - After `max_in_row` of them without one call between that ended in time, calls are refused, but for one every
      `RETRY_S` seconds: once such a call ends in time the lane is open again.
    - Every one of them may hold a thread, so with `max_abandoned` calls are refused until some have ended.
    """

    name: str
    max_in_row: int = 16
    max_abandoned: int = MAX_ABANDONED
    _in_row: list[Reply[object]] = field(default_factory=list)
    _earlier: list[Reply[object]] = field(default_factory=list)
    _last_try: float = 0.0

    @property
    def num_abandoned(self) -> int:
        """Calls left behind that have not ended yet."""
        self._in_row, self._earlier = _running(self._in_row), _running(self._earlier)
        return len(self._in_row) + len(self._earlier)

    def enter(self) -> None:
        """Raises `UnavailableError` while too many earlier calls still hang."""
        if not self._in_row and not self._earlier:
            return
        num_abandoned = self.num_abandoned
        if num_abandoned >= self.max_abandoned or (len(self._in_row) >= self.max_in_row and not self._try_again()):
            raise UnavailableError(f"{num_abandoned} earlier calls of {self.name} still hang")

    def _try_again(self) -> bool:
        due = time.monotonic() >= self._last_try + RETRY_S
        if due:
            self._last_try = time.monotonic()
        return due

    def abandon(self, reply: Reply[T], *, at_fault: bool = True) -> None:
        """Leave a call behind, one that hung or one that another kept from ending."""
        left = cast("Reply[object]", reply)
        if not at_fault:
            self._earlier.append(left)
            return
        self._in_row.append(left)
        if len(self._in_row) >= self.max_in_row:
            self._last_try = time.monotonic()

    def ended(self) -> None:
        """A call ended in time, so others may."""
        if self._in_row:
            self._earlier += self._in_row
            self._in_row = []


def _running(replies: list[Reply[object]]) -> list[Reply[object]]:
    return [reply for reply in replies if not reply.done]
