"""Tasks that tools and rewards add while a run goes on.

    from agentrl.data.online import add_task

    def compute_score(data_source, solution_str, ground_truth, extra_info):
        ...
        add_task({"prompt": harder, "ground_truth": "42", "data_source": data_source})

A row is what a file would hold. Rows are taken up when the groups that were rolled out together are done, in an order
that does not depend on which rollout was faster; they are checked as rows of files are, and each is drawn once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from threading import Lock
from typing import TypeVar

from pydantic import JsonValue

T = TypeVar("T")
_LOGGER = logging.getLogger(__name__)
_TOLD: set[str] = set()


def add_task(row: Mapping[str, JsonValue]) -> bool:
    """Add a task to the run whose rollout calls this, from a tool, a reward, an interaction or an agent loop.

    False where it is not taken: the row is no JSON, the rollout has added `data.online.max_tasks` already, or nothing
    takes tasks here: `data.online.max_tasks` is 0, this is validation, or another process (a tool with `isolation:
    process`). The reason is logged once. What is wrong with a row otherwise is found, and logged, when it is taken up.
    """
    adding = _ADDING.get()
    if adding is None:
        tell_once(
            "add_task: nothing takes tasks here: data.online.max_tasks is 0, or this is validation or another process"
        )
        return False
    return adding(row)


class Inbox:
    """What rollouts added and nobody looked at yet. Rollouts, tools and rewards may run on several threads.

    Args:
        most: rows that one rollout may add; so which of them are kept does not depend on timing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._rows: list[tuple[str, int, str]] = []
        self._num_refused = 0

    def within(self, uid: str, number: int, attempt: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """`attempt`, the rollout `number` of group `uid`, in which `add_task` adds to this."""
        left = [self._most]

        def add(row: Mapping[str, JsonValue]) -> bool:
            try:
                text = json.dumps({**row}, sort_keys=True)
            except (TypeError, ValueError) as error:
                tell_once(f"add_task: a row is left out: not JSON: {error}")
                return False
            with self._lock:
                left[0] -= 1
                if left[0] < 0:
                    self._num_refused += 1
                    return False
                self._rows.append((uid, number, text))
            return True

        async def run() -> T:
            token = _ADDING.set(add)
            try:
                return await attempt()
            finally:
                _ADDING.reset(token)

        return run

    def take(self) -> tuple[list[str], int]:
        """The rows as text, sorted by group, rollout and content; and how many more were refused."""
        with self._lock:
            rows, self._rows = self._rows, []
            num_refused, self._num_refused = self._num_refused, 0
        return [text for _, _, text in sorted(rows)], num_refused


_ADDING: ContextVar[Callable[[Mapping[str, JsonValue]], bool] | None] = ContextVar("adding", default=None)


def tell_once(line: str) -> None:
    """Log a warning, and the same one never again; the first hundred of a process."""
    if line not in _TOLD and len(_TOLD) < 100:
        _TOLD.add(line)
        _LOGGER.warning(line)
