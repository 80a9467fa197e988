"""How advantages changed, over rollouts, tokens and groups; nothing of a rollout is kept but the largest changes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentrl.replay.recredit import Credit

Values = NDArray[np.float64]


@dataclass(slots=True)
class Side:
    """The advantages of one time.

    Attributes:
        num_silent: groups with nothing to learn from: every advantage is 0, as where all rewards are equal.
    """

    num_rollouts: int = 0
    num_tokens: int = 0
    sum_size: float = 0.0
    num_silent: int = 0

    @property
    def mean_size(self) -> float | None:
        """Mean |advantage| of a trained token."""
        return self.sum_size / self.num_tokens if self.num_tokens else None

    def add(self, group: Sequence[Values | None]) -> None:
        """The rollouts of one group."""
        kept = [values for values in group if values is not None]
        self.num_rollouts += len(kept)
        self.num_tokens += sum(map(len, kept))
        self.sum_size += sum(float(np.abs(values).sum()) for values in kept)
        self.num_silent += is_silent(group)


@dataclass(slots=True)
class Tally:
    """Both times, and what differs.

    Attributes:
        identical: all numbers are the same, bit for bit.
        num_rollouts, num_tokens: trained both times; `num_turned_*` of them changed the sign of their advantage.
        largest: rollouts whose mean advantage changed most, with by how much; the largest first.
    """

    num_largest: int
    before: Side = field(default_factory=Side)
    after: Side = field(default_factory=Side)
    num_groups: int = 0
    num_fell_silent: int = 0
    num_woke: int = 0
    identical: bool = True
    num_rollouts: int = 0
    num_tokens: int = 0
    num_turned_rollouts: int = 0
    num_turned_tokens: int = 0
    _sums: Values = field(default_factory=lambda: np.zeros(5))
    _heap: list[tuple[float, int, Credit]] = field(default_factory=list)

    def add(self, group: Sequence[Credit]) -> None:
        """The rollouts of one group."""
        before, after = [credit.before for credit in group], [credit.after for credit in group]
        self.before.add(before)
        self.after.add(after)
        self.num_groups += 1
        self.num_fell_silent += is_silent(after) and not is_silent(before)
        self.num_woke += is_silent(before) and not is_silent(after)
        for credit in group:
            self._add(credit)

    def _add(self, credit: Credit) -> None:
        x, y = credit.before, credit.after
        if x is None or y is None:
            self.identical &= x is y
            return
        self.identical &= x.tobytes() == y.tobytes()
        self.num_rollouts += 1
        self.num_tokens += len(x)
        self.num_turned_rollouts += bool(np.sign(x.mean()) != np.sign(y.mean()))
        self.num_turned_tokens += int((np.sign(x) != np.sign(y)).sum())
        self._sums += [x.sum(), y.sum(), x @ x, y @ y, x @ y]
        if change := abs(credit.change):
            keep = heapq.heappush if len(self._heap) < self.num_largest else heapq.heappushpop
            keep(self._heap, (change, -self.num_rollouts, credit))  # of equal changes the first is kept

    @property
    def correlation(self) -> float | None:
        """Pearson's, over tokens trained both times; None where one side is all equal."""
        if not self.num_tokens:
            return None
        x, y, xx, yy, xy = self._sums / self.num_tokens
        spread = math.sqrt(max(xx - x * x, 0.0) * max(yy - y * y, 0.0))
        return float(xy - x * y) / spread if spread else None

    @property
    def largest(self) -> list[Credit]:
        """See the class."""
        return [credit for _, _, credit in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))]


def is_silent(group: Sequence[Values | None]) -> bool:
    """Whether a group has nothing to learn from."""
    return not any(values.any() for values in group if values is not None)
