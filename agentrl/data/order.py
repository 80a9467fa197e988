"""The order of draws: a pure function of seed and position, so that a run can resume at any step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Protocol

from agentrl.errors import DataError
from agentrl.utils.seeds import derive_seed


class Draw(NamedTuple):
    """One draw of a row. `draw` counts repeated draws in one epoch, for example if a stale task starts again."""

    epoch: int
    row: int
    draw: int = 0


class Order(Protocol):
    """Protocol of orders: maps positions to draws."""

    def at(self, position: int) -> Draw:
        """Return the draw at `position`, counted from 0."""
        ...


class TaskOrder:
    """Draws every row once per epoch. It has no state.

    Args:
        num_rows: number of rows of the dataset, at least 1.
        shuffle: shuffle the rows in every epoch; otherwise use the dataset's order.
        keys: one per row; rows with smaller keys come first in every epoch. Rows with equal keys are shuffled, or
            stay in the dataset's order.
    """

    def __init__(self, num_rows: int, seed: int, shuffle: bool, keys: Sequence[float] | None = None) -> None:
        if num_rows < 1:
            raise ValueError("an order needs at least one row")
        self.num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._keys = keys
        self._rows_of = lru_cache(maxsize=2)(self._epoch_rows)  # a batch rarely spans more than two epochs

    def at(self, position: int) -> Draw:
        """Return the draw at `position`, counted from 0 over all epochs."""
        epoch, place = divmod(position, self.num_rows)
        return Draw(epoch, self._rows_of(epoch)[place])

    def batch(self, step: int, size: int) -> list[Draw]:
        """Return the `size` draws of `step`, counted from 0; a batch may continue into the next epoch."""
        return [self.at(position) for position in range(step * size, (step + 1) * size)]

    def _epoch_rows(self, epoch: int) -> Sequence[int]:
        rows = list(range(self.num_rows))
        if self._shuffle:
            random.Random(derive_seed(self._seed, "order", epoch)).shuffle(rows)
        return rows if self._keys is None else sorted(rows, key=self._keys.__getitem__)


class WeightedOrder(TaskOrder):
    """Draws from files in proportion to the files' weights, evenly spread. A pass over a file draws every row once.

    Let s be the first file's share of the weights. The first file gets floor(s p + o) of the first p draws, where
    0 <= o < 1 depends on the seed. The second file gets its share of the remaining draws in the same way, and so on:

        weights [2, 1] -> file of each draw, for example 0 1 0 0 1 0 0 1 0 ...

    The `epoch` of a draw is the number of earlier passes over the file, so each pair of row and epoch is drawn once.

    Args:
        sizes: number of rows of each file, at least 1.
        weights: one per file, above 0.
        keys: as in `TaskOrder`, for all files; they order the rows within each file.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        seed: int,
        shuffle: bool,
        keys: Sequence[float] | None = None,
    ) -> None:
        super().__init__(sum(sizes), seed, shuffle)
        self._starts = [sum(sizes[:file]) for file in range(len(sizes))]
        self._files = [
            TaskOrder(size, derive_seed(seed, "file", file), shuffle, keys and keys[start : start + size])
            for file, (start, size) in enumerate(zip(self._starts, sizes, strict=True))
        ]
        exact = [Fraction(repr(weight)) for weight in weights]  # exact decimal value: 0.1 is 1/10
        shares = [weight / sum(exact[file:]) for file, weight in enumerate(exact)]
        self._turns = [Turns(share, derive_seed(seed, "turns", file)) for file, share in enumerate(shares)]

    def at(self, position: int) -> Draw:
        """Return the draw at `position`, counted from 0."""
        for start, order, turns in zip(self._starts, self._files, self._turns, strict=True):
            earlier = turns.before(position)
            if turns.before(position + 1) > earlier:
                epoch, row, _ = order.at(earlier)
                return Draw(epoch, start + row)
            position -= earlier
        raise AssertionError("the last file gets all remaining draws")


class Turns:
    """Positions of one file among the draws, computed with integers and therefore exact for runs of any length."""

    def __init__(self, share: Fraction, seed: int) -> None:
        self._share = share
        self._offset = seed % share.denominator

    def before(self, position: int) -> int:
        """Return how many of the first `position` draws belong to the file."""
        return (position * self._share.numerator + self._offset) // self._share.denominator


def task_order(
    sizes: Sequence[int], weights: Sequence[float], seed: int, shuffle: bool, keys: Sequence[float] | None = None
) -> TaskOrder:
    """Return the order for files with `sizes` rows. Without weights, every row is drawn equally often.

    Args:
        keys: one per row; rows with smaller keys come first.

    Raises:
        DataError: there are weights, and a file has no rows to draw.
    """
    if not weights:
        return TaskOrder(sum(sizes), seed, shuffle, keys)
    if 0 in sizes:
        raise DataError(f"data.dataset_weights: train file {sizes.index(0) + 1} of {len(sizes)} has no rows to draw")
    return WeightedOrder(sizes, weights, seed, shuffle, keys)
