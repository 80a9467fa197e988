"""The order in which rows are drawn: a pure function of seed and position, so that a run resumes anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from agentrl.seeds import derive_seed


class Draw(NamedTuple):
    """One drawing of a row. `draw` tells apart drawings of one row in one epoch, such as after a requeue."""

    epoch: int
    row: int
    draw: int = 0


class TaskOrder:
    """Every row once an epoch, epoch after epoch; its whole state is the position asked for.

    Args:
        num_rows: rows of the dataset, at least 1.
        shuffle: a new order in every epoch; otherwise the dataset's own.
    """

    def __init__(self, num_rows: int, seed: int, shuffle: bool) -> None:
        if num_rows < 1:
            raise ValueError("an order needs at least one row")
        self.num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._rows_of = lru_cache(maxsize=2)(self._epoch_rows)  # a batch lies in two epochs at most, unless it is huge

    def at(self, position: int) -> Draw:
        """What is drawn at `position`, counted from 0 over all epochs."""
        epoch, place = divmod(position, self.num_rows)
        return Draw(epoch, self._rows_of(epoch)[place])

    def batch(self, step: int, size: int) -> list[Draw]:
        """The `size` draws of `step`, counted from 0; a batch may reach into the next epoch."""
        return [self.at(position) for position in range(step * size, (step + 1) * size)]

    def _epoch_rows(self, epoch: int) -> Sequence[int]:
        rows = list(range(self.num_rows))
        if self._shuffle:
            random.Random(derive_seed(self._seed, "order", epoch)).shuffle(rows)
        return rows
