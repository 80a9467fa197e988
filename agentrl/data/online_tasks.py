"""The buffer of tasks that were added while a run goes on, and the order that mixes them with rows of files."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import cast

from pydantic import JsonValue

from agentrl.attempt import Group
from agentrl.config.data import OnlineConfig
from agentrl.data.curriculum import LearningOrder, OneByOne
from agentrl.data.fields import FieldError
from agentrl.data.online import Inbox, tell_once
from agentrl.data.order import Draw, Order, Turns
from agentrl.data.rows import Row
from agentrl.errors import DataError
from agentrl.seeds import derive_seed
from agentrl.task import Task


class OnlineTasks:
    """The tasks that were added: those that wait, and those that were drawn and may still be asked for, by row.

    Args:
        read: a row, and the number it is to have, as a task; raises FieldError or DataError where it is none.
        first_row: beyond all rows of files.
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

    def take_up(self) -> None:
        """Look at what was added: leave out bad rows and copies of waiting ones, keep to the bounds; all counted."""
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
        """The row that waited longest; it waits no more."""
        return self._waiting.popleft() if self._waiting else None

    def keep_drawn(self, rows: Iterable[int]) -> None:
        """Forget what was drawn, but for `rows`."""
        wanted = {*self._waiting, *rows}
        self._texts = {row: text for row, text in self._texts.items() if row in wanted}

    def metrics(self) -> dict[str, float]:
        """`online/...`: tasks waiting; of those added since this was asked: taken, and left out by reason."""
        counts, self._counts = self._counts, Counter()
        kinds = ("added", "duplicates", "bad", "refused", "dropped")
        return {
            "online/waiting": float(len(self._waiting)),
            **{f"online/{kind}": float(counts[kind]) for kind in kinds},
        }

    def state_dict(self) -> dict[str, JsonValue]:
        """All rows that are held, as text."""
        texts: JsonValue = [[row, text] for row, text in self._texts.items()]
        return {"next_row": self._next_row, "waiting": list(self._waiting), "texts": texts}

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Go on from there."""
        self._next_row = cast(int, state["next_row"])
        self._waiting = deque(cast(list[int], state["waiting"]))
        self._texts = dict(cast(list[tuple[int, str]], state["texts"]))

    def _makes_sense(self, text: str) -> bool:
        try:
            self._read(json.loads(text), self._next_row)
        except (FieldError, DataError) as error:
            self._counts["bad"] += 1
            tell_once(f"add_task: a row is left out: {error}: {text:.200}")
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
    """Draws tasks that were added, up to a share of all draws, and rows of files otherwise.

    Attributes:
        in_flight: the draws that may still be asked for.
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
        """Take up what their rollouts added, and let the order of the files learn from its own."""
        self._tasks.take_up()
        self._tasks.keep_drawn(draw.row for draw in (*self.in_flight(), *filter(None, [self._draw])))
        if self._learning:
            self._learning.observe([group for group in groups if group.task.index < self._tasks.first_row])

    def metrics(self) -> dict[str, float]:
        """Of the tasks that were added, and of the order of the files."""
        return {**self._tasks.metrics(), **(self._learning.metrics() if self._learning else {})}

    def state_dict(self) -> dict[str, JsonValue]:
        """The last draw, the tasks that were added, and the state of the order of the files."""
        files = self._learning.state_dict() if self._learning else None
        own = {"num_from_files": self._num_from_files, "tasks": self._tasks.state_dict(), "files": files}
        return {**super().state_dict(), **cast(dict[str, JsonValue], own)}

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Go on from there."""
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
