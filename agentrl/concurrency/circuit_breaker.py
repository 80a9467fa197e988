"""Circuit breaker for hung calls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TypeVar, cast

from agentrl.concurrency.mailbox import Reply, UnavailableError

T = TypeVar("T")

MAX_ABANDONED = 512
"""Maximum number of abandoned calls at a time; each may block a thread."""
RETRY_S = 10.0
"""Minimum seconds until the first trial call after the breaker starts to refuse calls, and between trial calls."""


@dataclass(slots=True)
class CircuitBreaker:
    """Counts the abandoned calls of `name` that still run, and refuses new calls if there are too many.

    - If `max_in_row` calls that were abandoned in a row still run, new calls are refused, except one trial call every
      `RETRY_S` seconds. When a trial call ends in time, calls are allowed again.
    - Each abandoned call may block a thread. So if `max_abandoned` abandoned calls still run, new calls are refused
      until some of these calls end.
    """

    name: str
    max_in_row: int = 16
    max_abandoned: int = MAX_ABANDONED
    _in_row: list[Reply[object]] = field(default_factory=list)
    _earlier: list[Reply[object]] = field(default_factory=list)
    _last_try: float = 0.0

    @property
    def num_abandoned(self) -> int:
        """Number of abandoned calls that still run."""
        self._in_row, self._earlier = _running(self._in_row), _running(self._earlier)
        return len(self._in_row) + len(self._earlier)

    def enter(self) -> None:
        """Raise `UnavailableError` if too many earlier calls still hang, unless this call is a trial call."""
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
        """Count a call as abandoned.

        Args:
            at_fault: False if another call blocked this call. Then this call does not count towards `max_in_row`.
        """
        left = cast("Reply[object]", reply)
        left.abandoned(self.name)
        if not at_fault:
            self._earlier.append(left)
            return
        self._in_row.append(left)
        if len(self._in_row) >= self.max_in_row:
            self._last_try = time.monotonic()

    def ended(self) -> None:
        """Record that a call ended in time; the count of abandoned calls in a row restarts at 0."""
        if self._in_row:
            self._earlier += self._in_row
            self._in_row = []


def _running(replies: list[Reply[object]]) -> list[Reply[object]]:
    return [reply for reply in replies if not reply.done]
