"""Curricula. Rows are ordered by a column, or sampled so that rows near a target pass rate are drawn more often."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from pydantic import JsonValue

from agentrl.config.data import CurriculumConfig
from agentrl.data.order import Draw, Order
from agentrl.data.tasks import TaskTable
from agentrl.errors import DataError, suggestion
from agentrl.types.rollout import Group
from agentrl.types.task import Task
from agentrl.utils.seeds import derive_seed


class LearningOrder(Order, Protocol):
    """An order that depends on the results of earlier draws. Its state is saved in the run's checkpoints."""

    def observe(self, groups: Sequence[Group]) -> None:
        """Update the order with finished groups; called before the next draw."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics of the current state."""
        ...

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the state; an order that loads this state makes the same further draws as this order."""
        ...

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Restore the state."""
        ...


class OneByOne(ABC):
    """Base class of orders with state: draws are made one after the other, each exactly once."""

    def __init__(self) -> None:
        self._position = -1
        self._draw: Draw | None = None

    def at(self, position: int) -> Draw:
        """Return the draw at `position`, which must be the last requested position or the one after it.

        The first call may use any position, because an earlier part of the run may have used another order.
        """
        if self._draw is None:
            self._begin(position)
        elif position not in (self._position, self._position + 1):
            raise ValueError(f"draw {position} requested after draw {self._position}: draws must be requested in order")
        if self._draw is None or position > self._position:
            self._position, self._draw = position, self._next(position)
        return self._draw

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the last draw."""
        return {"position": self._position, "draw": list(self._draw) if self._draw else None}

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Restore the last draw, so that the next draw follows it."""
        self._position = cast(int, state["position"])
        self._draw = Draw(*cast(list[int], state["draw"])) if state["draw"] else None

    @abstractmethod
    def _begin(self, position: int) -> None:
        """Prepare for the first draw, at `position`."""

    @abstractmethod
    def _next(self, position: int) -> Draw:
        """Make the next draw."""


class PassRateOrder(OneByOne):
    """Visits the rows in the order of `turns`, epoch after epoch, and skips some rows.

    A visited row with pass rate r is drawn with probability

        floor + (1 - floor) (1 - |r - target| / max(target, 1 - target))

    The probability is 1 at the target, and 1 for a row without a measured pass rate. r is an exponential moving
    average over the groups of the row, in which the newest group has weight `smoothing`. A group's pass rate is the
    share of its rollouts with a score of `success_threshold` or more. Whether a visited row is drawn depends only on
    seed, visit number and r. No row is drawn twice in an epoch.

    Args:
        position_of: returns a row's position in the dataset; groups of the row have this position as `task.index`.
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
        self._num_drawn = self._num_turns = 0  # since the last call of `metrics`
        self._rates: dict[int, float] = {}  # position in the dataset -> pass rate

    def observe(self, groups: Sequence[Group]) -> None:
        """Update the pass rates of the groups' rows; groups without valid rollouts are ignored."""
        for group in groups:
            if scores := [rollout.reward for rollout in group.rollouts if rollout.valid]:
                passed = sum(score >= self._success_threshold for score in scores) / len(scores)
                before = self._rates.get(group.task.index, passed)
                self._rates[group.task.index] = before + self._config.smoothing * (passed - before)

    def probability(self, row: int) -> float:
        """Return the probability that the row is drawn when it is visited."""
        rate = self._rates.get(self._position_of(row))
        if rate is None:
            return 1.0
        target, floor = self._config.target, self._config.floor
        return floor + (1 - floor) * (1 - abs(rate - target) / max(target, 1 - target))

    def metrics(self) -> dict[str, float]:
        """Return `curriculum/...`: number of rows with a pass rate, their mean pass rate, and the share of drawn rows.

        The share is the number of drawn rows divided by the number of visited rows, since the last call.
        """
        known, num_turns = self._rates.values(), self._num_turns
        metrics = {"curriculum/measured_rows": float(len(known))}
        if known:
            metrics["curriculum/pass_rate"] = sum(known) / len(known)
        if num_turns:
            metrics["curriculum/drawn_share"] = self._num_drawn / num_turns
        self._num_drawn = self._num_turns = 0
        return metrics

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the last draw, the number of the next visit, and the pass rates."""
        rates: JsonValue = [[row, rate] for row, rate in self._rates.items()]
        return {**super().state_dict(), "turn": self._turn, "rates": rates}

    def load_state_dict(self, state: dict[str, JsonValue]) -> None:
        """Restore the state."""
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
    """Return one sort key per row from the column `config.by`; smaller keys are drawn first.

    Raises:
        DataError: a row lacks the column, or its value cannot be ordered. The message names file and row.
    """
    assert config.by is not None  # checked by the caller
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
        raise DataError(f"'{name}' is {value!r}, expected a number (list other values in data.curriculum.values)")
    return float(value)
