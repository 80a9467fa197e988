"""Tasks that tools and rewards add during a run.

    from agentrl.data.online import add_task

    def compute_score(data_source, solution_str, ground_truth, extra_info):
        ...
        add_task({"prompt": harder, "ground_truth": "42", "data_source": data_source})

A row has the format of a row in a file. In on-policy runs, new rows are accepted when the groups of a batch are done,
in an order that does not depend on the speed of rollouts. In asynchronous runs, new rows are accepted whenever a group
is done. New rows are checked like rows of files. Each accepted row is drawn at most once.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from fractions import Fraction
from threading import Lock
from typing import TypeVar, cast

from pydantic import JsonValue

from agentrl.config.data import OnlineConfig
from agentrl.data.curriculum import LearningOrder, OneByOne
from agentrl.data.fields import FieldError
from agentrl.data.order import Draw, Order, Turns
from agentrl.data.rows.base import Row
from agentrl.errors import DataError
from agentrl.types.rollout import Group
from agentrl.types.task import Task
from agentrl.utils.seeds import derive_seed

T = TypeVar("T")
_LOGGER = logging.getLogger(__name__)
_WARNED: set[str] = set()


def add_task(row: Mapping[str, JsonValue]) -> bool:
    """Add a task to the run; called by a tool, a reward, an interaction or an agent loop during a rollout.

    Return False if the row is rejected, for one of these reasons:

    - The row is not JSON.
    - The rollout has already added `data.online.max_tasks` rows.
    - Tasks cannot be added here: `data.online.max_tasks` is 0, the rollout belongs to validation, or the code runs in
      another process (a tool with `isolation: process`).

    The first and the last reason are logged once. Other errors of a row are detected and logged later, when
    `OnlineTasks.check_added` checks the row.
    """
    adding = _ADDING.get()
    if adding is None:
        warn_once("add_task has no effect here: data.online.max_tasks is 0, or this is validation or another process")
        return False
    return adding(row)


class Inbox:
    """Thread-safe collection of the rows that rollouts added and that are not checked yet.

    Args:
        most: maximum number of rows per rollout. Because the limit is per rollout, the timing of rollouts does not
            affect which rows are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._rows: list[tuple[str, int, str]] = []
        self._num_refused = 0

    def within(self, uid: str, number: int, attempt: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """Wrap `attempt`, which runs rollout `number` of group `uid`: `add_task` then adds rows to this inbox."""
        left = [self._most]

        def add(row: Mapping[str, JsonValue]) -> bool:
            try:
                text = json.dumps({**row}, sort_keys=True)
            except (TypeError, ValueError, RecursionError) as error:
                warn_once(f"add_task: a row was dropped: not JSON: {error}")
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
        """Remove and return the rows as text (sorted by group, rollout, content), and the number of rejected rows."""
        with self._lock:
            rows, self._rows = self._rows, []
            num_refused, self._num_refused = self._num_refused, 0
        return [text for _, _, text in sorted(rows)], num_refused


_ADDING: ContextVar[Callable[[Mapping[str, JsonValue]], bool] | None] = ContextVar("adding", default=None)


def warn_once(line: str) -> None:
    """Log a warning only once; at most 100 different warnings per process."""
    if line not in _WARNED and len(_WARNED) < 100:
        _WARNED.add(line)
        _LOGGER.warning(line)


class OnlineTasks:
    """The added tasks, by row number: waiting tasks, and drawn tasks that may still be needed.

    Args:
        read: converts a row and its number to a task; raises FieldError or DataError if the row is invalid.
        first_row: number of the first added row, greater than the number of any row of the files.
    """

    def __init__(self, config: OnlineConfig, read: Callable[[Row, int], Task], first_row: int) -> None:
        self.inbox = Inbox(config.max_tasks)
        self.first_row = first_row
        self._config = config
        self._read = read
        self._next_row = first_row
        self._waiting: deque[int] = deque()
        self._texts: dict[int, str] = {}
        self._counts: Counter[str] = Counter()

    def __getitem__(self, row: int) -> Task:
        return self._read(json.loads(self._texts[row]), row)

    def check_added(self) -> None:
        """Check the added rows; skip bad rows and duplicates of waiting rows, apply the limits, and count each case."""
        texts, num_refused = self.inbox.take()
        self._counts["refused"] += num_refused
        waiting = {self._texts[row] for row in self._waiting}
        for text in texts:
            if text in waiting:
                self._counts["duplicates"] += 1
            elif self._makes_sense(text) and self._has_room():
                waiting.add(text)
                self._texts[self._next_row] = text
                self._waiting.append(self._next_row)
                self._next_row += 1
                self._counts["added"] += 1

    def draw(self) -> int | None:
        """Take the row that has waited longest, and return its number; None if no row waits."""
        return self._waiting.popleft() if self._waiting else None

    def keep_drawn(self, rows: Iterable[int]) -> None:
        """Delete the drawn rows except `rows`."""
        wanted = {*self._waiting, *rows}
        self._texts = {row: text for row, text in self._texts.items() if row in wanted}

    def metrics(self) -> dict[str, float]:
        """Return `online/...`: number of waiting tasks, and counts of accepted and skipped rows since the last call."""
        counts, self._counts = self._counts, Counter()
        kinds = ("added", "duplicates", "bad", "refused", "dropped")
        return {
            "online/waiting": float(len(self._waiting)),
            **{f"online/{kind}": float(counts[kind]) for kind in kinds},
        }

    def state_dict(self) -> dict[str, JsonValue]:
        """Return all waiting and drawn rows, as text."""
        texts: JsonValue = [[row, text] for row, text in self._texts.items()]
        return {"next_row": self._next_row, "waiting": list(self._waiting), "texts": texts}

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Restore the state."""
        self._next_row = cast(int, state["next_row"])
        self._waiting = deque(cast(list[int], state["waiting"]))
        self._texts = dict(cast(list[tuple[int, str]], state["texts"]))

    def _makes_sense(self, text: str) -> bool:
        try:
            self._read(json.loads(text), self._next_row)
        except (FieldError, DataError) as error:
            self._counts["bad"] += 1
            warn_once(f"add_task: a row was dropped: {error}: {text:.200}")
            return False
        return True

    def _has_room(self) -> bool:
        if len(self._waiting) < self._config.max_tasks:
            return True
        if self._config.when_full == "refuse":
            self._counts["refused"] += 1
            return False
        del self._texts[self._waiting.popleft()]
        self._counts["dropped"] += 1
        return True


class OnlineOrder(OneByOne):
    """Draws added tasks up to a share of all draws; all other draws are rows of files.

    Attributes:
        in_flight: returns earlier draws whose rows may still be needed.
    """

    def __init__(
        self, files: Order, learning: LearningOrder | None, tasks: OnlineTasks, config: OnlineConfig, seed: int
    ) -> None:
        super().__init__()
        self.in_flight: Callable[[], Iterable[Draw]] = tuple
        self._files = files
        self._learning = learning
        self._tasks = tasks
        share = Fraction(repr(config.share))
        self._turns = Turns(share, derive_seed(seed, "online"))
        self._num_from_files = 0

    def observe(self, groups: Sequence[Group]) -> None:
        """Check and queue the rows that rollouts added. Update the curriculum of the file rows, if there is one."""
        self._tasks.check_added()
        self._tasks.keep_drawn(draw.row for draw in (*self.in_flight(), *filter(None, [self._draw])))
        if self._learning:
            self._learning.observe([group for group in groups if group.task.index < self._tasks.first_row])

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the added tasks and, if there is one, of the curriculum of the file rows."""
        return {**self._tasks.metrics(), **(self._learning.metrics() if self._learning else {})}

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the last draw, the added tasks, and the state of the curriculum of the file rows, if there is one."""
        files = self._learning.state_dict() if self._learning else None
        own = {"num_from_files": self._num_from_files, "tasks": self._tasks.state_dict(), "files": files}
        return {**super().state_dict(), **cast(dict[str, JsonValue], own)}

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Restore the state."""
        super().load_state_dict(state)
        self._num_from_files = cast(int, state["num_from_files"])
        self._tasks.load_state_dict(cast(dict[str, JsonValue], state["tasks"]))
        if self._learning and (files := state["files"]):
            self._learning.load_state_dict(cast(dict[str, JsonValue], files))

    def _begin(self, position: int) -> None:
        self._num_from_files = position

    def _next(self, position: int) -> Draw:
        if self._turns.before(position + 1) > self._turns.before(position) and (row := self._tasks.draw()) is not None:
            return Draw(0, row)
        self._num_from_files += 1
        return self._files.at(self._num_from_files - 1)
