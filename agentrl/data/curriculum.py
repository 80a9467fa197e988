"""Curricula: rows in the order of a column, or drawn the more often the nearer their pass rate is to a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from pydantic import JsonValue

from agentrl.attempt import Group
from agentrl.config.data import CurriculumConfig
from agentrl.data.order import Draw, Order
from agentrl.data.tasks import TaskTable
from agentrl.errors import DataError, suggestion
from agentrl.seeds import derive_seed
from agentrl.task import Task


class LearningOrder(Order, Protocol):
    """An order that goes by what became of earlier draws. Its state is saved with the run's."""

    def observe(self, groups: Sequence[Group]) -> None:
        """What tasks that were drawn came to; before the next one is drawn."""
        ...

    def metrics(self) -> dict[str, float]:
        """What it knows by now."""
        ...

    def state_dict(self) -> dict[str, JsonValue]:
        """All that must be saved for the same rows to come next."""
        ...

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Go on from there."""
        ...


class OneByOne(ABC):
    """An order whose draws depend on what was seen before: each is made once, in turn, and stays as it was made."""

    def __init__(self) -> None:
        self._position = -1
        self._draw: Draw | None = None

    def at(self, position: int) -> Draw:
        """What is drawn at `position`: the next one, or the last one again.

        A run that had no such order before may begin anywhere.
        """
        if self._draw is None:
            self._begin(position)
        elif position not in (self._position, self._position + 1):
            raise ValueError(f"draw {position} asked for after draw {self._position}: they are made one by one")
        if self._draw is None or position > self._position:
            self._position, self._draw = position, self._next(position)
        return self._draw

    def state_dict(self) -> dict[str, JsonValue]:
        """The last draw."""
        return {"position": self._position, "draw": list(self._draw) if self._draw else None}

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Go on after that draw."""
        self._position = cast(int, state["position"])
        self._draw = Draw(*cast(list[int], state["draw"])) if state["draw"] else None

    @abstractmethod
    def _begin(self, position: int) -> None:
        """The first draw will be at `position`."""

    @abstractmethod
    def _next(self, position: int) -> Draw:
        """What comes next."""


class PassRateOrder(OneByOne):
    """Goes through the rows as `turns` does, epoch after epoch, and passes some over.

    A row with pass rate r is drawn in its turn with probability

        floor + (1 - floor) (1 - |r - target| / max(target, 1 - target))

    which is 1 at the target, and for a row that was never seen. r is the running mean of the success of its groups: the
    share of their rollouts with a score of `success_threshold` or more, the newest counting `smoothing`. Whether a turn
    is taken is a pure function of seed, turn and r. So no row comes twice in an epoch, and none is given up.

    Args:
        position_of: a row's position in the dataset, by which its groups are known.
    """

    def __init__(
        self,
        turns: Order,
        config: CurriculumConfig,
        success_threshold: float,
        seed: int,
        position_of: Callable[[int], int],
    ) -> None:
        super().__init__()
        self._turns = turns
        self._config = config
        self._success_threshold = success_threshold
        self._seed = seed
        self._position_of = position_of
        self._turn = 0
        self._num_drawn = self._num_turns = 0  # since metrics were asked for
        self._rates: dict[int, float] = {}  # by position in the dataset: at most one a row

    def observe(self, groups: Sequence[Group]) -> None:
        """Correct the pass rates of their rows; a group in which nothing counts says nothing."""
        for group in groups:
            if scores := [rollout.reward for rollout in group.rollouts if rollout.valid]:
                passed = sum(score >= self._success_threshold for score in scores) / len(scores)
                before = self._rates.get(group.task.index, passed)
                self._rates[group.task.index] = before + self._config.smoothing * (passed - before)

    def probability(self, row: int) -> float:
        """How likely the row is drawn in its turn."""
        rate = self._rates.get(self._position_of(row))
        if rate is None:
            return 1.0
        target, floor = self._config.target, self._config.floor
        return floor + (1 - floor) * (1 - abs(rate - target) / max(target, 1 - target))

    def metrics(self) -> dict[str, float]:
        """`curriculum/...`: rows measured, their mean pass rate, and the share of turns that was taken of late."""
        known, num_turns = self._rates.values(), self._num_turns
        metrics = {"curriculum/measured_rows": float(len(known))}
        if known:
            metrics["curriculum/pass_rate"] = sum(known) / len(known)
        if num_turns:
            metrics["curriculum/drawn_share"] = self._num_drawn / num_turns
        self._num_drawn = self._num_turns = 0
        return metrics

    def state_dict(self) -> dict[str, JsonValue]:
        """The last draw, the turn after it, and the pass rates."""
        rates: JsonValue = [[row, rate] for row, rate in self._rates.items()]
        return {**super().state_dict(), "turn": self._turn, "rates": rates}

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._turn = cast(int, state["turn"])
        self._rates = dict(cast(list[tuple[int, float]], state["rates"]))

    def _begin(self, position: int) -> None:
        self._turn = position

    def _next(self, position: int) -> Draw:
        while True:
            turn, draw = self._turn, self._turns.at(self._turn)
            self._turn += 1
            self._num_turns += 1
            if derive_seed(self._seed, "curriculum", turn) / 2**63 < self.probability(draw.row):
                self._num_drawn += 1
                return draw


def column_keys(tasks: TaskTable, config: CurriculumConfig) -> list[float]:
    """What orders the rows by the column `config.by`, small ones first.

    Raises:
        DataError: a row has no such column, or a value that has no place in an order. Names file and row.
    """
    assert config.by is not None  # a rule of whoever asks
    name = config.by.removeprefix("extra_info.")
    keys = []
    for row, task in enumerate(tasks):
        try:
            keys.append(_key(task, name, config.values))
        except DataError as error:
            raise DataError(f"{tasks.where(row)}: data.curriculum.by: {error}") from error
    return [-key for key in keys] if config.descending else keys


def _key(task: Task, name: str, values: Sequence[str]) -> float:
    value = task.data_source if name == "data_source" else task.extra_info.get(name)
    if value is None:
        raise DataError(f"no column '{name}'; {suggestion(name, task.extra_info)}")
    if values:
        if value not in values:
            raise DataError(f"'{name}' is {value!r}: {suggestion(str(value), values)} (data.curriculum.values)")
        return values.index(str(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise DataError(f"'{name}' is {value!r}, expected a number, or its values in order in data.curriculum.values")
    return float(value)
