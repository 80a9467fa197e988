"""The order in which rows are drawn: a pure function of seed and position, so that a run resumes anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Protocol

from agentrl.errors import DataError
from agentrl.seeds import derive_seed


class Draw(NamedTuple):
    """One drawing of a row. `draw` tells apart drawings of one row in one epoch, such as after a requeue."""

    epoch: int
    row: int
    draw: int = 0


class Order(Protocol):
    """Which row is drawn when."""

    def at(self, position: int) -> Draw:
        """What is drawn at `position`, counted from 0."""
        ...


class TaskOrder:
    """Every row once an epoch, epoch after epoch; its whole state is the position asked for.

    Args:
        num_rows: rows of the dataset, at least 1.
        shuffle: a new order in every epoch; otherwise the dataset's own.
        keys: one a row: smaller ones come first in every epoch. Rows of one key are shuffled, or in their own order.
    """

    def __init__(self, num_rows: int, seed: int, shuffle: bool, keys: Sequence[float] | None = None) -> None:
        if num_rows < 1:
            raise ValueError("an order needs at least one row")
        self.num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._keys = keys
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
        return rows if self._keys is None else sorted(rows, key=self._keys.__getitem__)


class WeightedOrder(TaskOrder):
    """Files in proportion to their weights, spread as evenly as can be; within a file every row once a pass.

    The first file, of share s of the weights, gets floor(s p + o) of the first p draws, 0 <= o < 1 from the seed; the
    second does so with what is left of draws and weights, and so on:

        weights [2, 1]    files of the draws, such as 0 1 0 0 1 0 0 1 0 ...

    The `epoch` of a draw is how often its file was gone through before: a row and its epoch are drawn once.

    Args:
        sizes: rows of each file, at least 1.
        weights: above 0, one a file.
        keys: as in `TaskOrder`, over all files; they order the rows of each.
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
        exact = [Fraction(repr(weight)) for weight in weights]  # as it was written: 0.1 is a tenth
        shares = [weight / sum(exact[file:]) for file, weight in enumerate(exact)]
        self._turns = [Turns(share, derive_seed(seed, "turns", file)) for file, share in enumerate(shares)]

    def at(self, position: int) -> Draw:
        """What is drawn at `position`, counted from 0."""
        for start, order, turns in zip(self._starts, self._files, self._turns, strict=True):
            earlier = turns.before(position)
            if turns.before(position + 1) > earlier:
                epoch, row, _ = order.at(earlier)
                return Draw(epoch, start + row)
            position -= earlier
        raise AssertionError("the last file's share of what is left is all of it")


class Turns:
    """One file's turns among draws; whole numbers, so that they are exact however long a run is."""

    def __init__(self, share: Fraction, seed: int) -> None:
        self._share = share
        self._offset = seed % share.denominator

    def before(self, position: int) -> int:
        """How many of the first `position` draws are its."""
        return (position * self._share.numerator + self._offset) // self._share.denominator


def task_order(
    sizes: Sequence[int], weights: Sequence[float], seed: int, shuffle: bool, keys: Sequence[float] | None = None
) -> TaskOrder:
    """The order of files with `sizes` rows; without weights every row is drawn as often as any other.

    Args:
        keys: one a row; smaller ones come first.

    Raises:
        DataError: a file has no rows left to draw.
    """
    if not weights:
        return TaskOrder(sum(sizes), seed, shuffle, keys)
    if 0 in sizes:
        raise DataError(f"data.dataset_weights: train file {sizes.index(0) + 1} of {len(sizes)} has no rows to draw")
    return WeightedOrder(sizes, weights, seed, shuffle, keys)
