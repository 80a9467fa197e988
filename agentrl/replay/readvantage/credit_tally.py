"""Statistics of changed advantages, per rollout, token and group. Only the largest changes are kept in memory."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentrl.replay.readvantage.recredit import Credit

Values = NDArray[np.float64]


@dataclass(slots=True)
class Side:
    """Statistics of one set of advantages, saved or recomputed.

    Attributes:
        num_without_signal: number of groups whose advantages are all 0, for example because of equal rewards.
    """

    num_rollouts: int = 0
    num_tokens: int = 0
    sum_size: float = 0.0
    num_without_signal: int = 0

    @property
    def mean_size(self) -> float | None:
        """Mean |advantage| of a trained token."""
        return self.sum_size / self.num_tokens if self.num_tokens else None

    def add(self, group: Sequence[Values | None]) -> None:
        """Add the rollouts of one group."""
        trained = [values for values in group if values is not None]
        self.num_rollouts += len(trained)
        self.num_tokens += sum(map(len, trained))
        self.sum_size += sum(float(np.abs(values).sum()) for values in trained)
        self.num_without_signal += has_no_signal(group)


@dataclass(slots=True)
class Tally:
    """Comparison of saved and recomputed advantages.

    Attributes:
        num_lost_signal: number of groups whose advantages are all 0 only after recomputing.
        num_gained_signal: number of groups whose advantages are all 0 only before recomputing.
        identical: whether all recomputed advantages are bitwise equal to the saved advantages.
        num_rollouts, num_tokens: number of rollouts and tokens with both a saved and a recomputed advantage.
        num_sign_changed_rollouts: number of these rollouts whose mean advantage changed its sign.
        num_sign_changed_tokens: number of these tokens whose advantage changed its sign.
        largest: rollouts whose mean advantage changed most, the largest change first.
    """

    num_largest: int
    before: Side = field(default_factory=Side)
    after: Side = field(default_factory=Side)
    num_groups: int = 0
    num_lost_signal: int = 0
    num_gained_signal: int = 0
    identical: bool = True
    num_rollouts: int = 0
    num_tokens: int = 0
    num_sign_changed_rollouts: int = 0
    num_sign_changed_tokens: int = 0
    _sums: Values = field(default_factory=lambda: np.zeros(5))
    _heap: list[tuple[float, int, Credit]] = field(default_factory=list)

    def add(self, group: Sequence[Credit]) -> None:
        """Add the rollouts of one group."""
        before, after = [credit.before for credit in group], [credit.after for credit in group]
        self.before.add(before)
        self.after.add(after)
        self.num_groups += 1
        self.num_lost_signal += has_no_signal(after) and not has_no_signal(before)
        self.num_gained_signal += has_no_signal(before) and not has_no_signal(after)
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
        self.num_sign_changed_rollouts += bool(np.sign(x.mean()) != np.sign(y.mean()))
        self.num_sign_changed_tokens += int((np.sign(x) != np.sign(y)).sum())
        self._sums += [x.sum(), y.sum(), x @ x, y @ y, x @ y]
        if change := abs(credit.change):
            keep = heapq.heappush if len(self._heap) < self.num_largest else heapq.heappushpop
            keep(self._heap, (change, -self.num_rollouts, credit))  # among equal changes, keep the first

    @property
    def correlation(self) -> float | None:
        """Pearson correlation over the tokens that have both advantages; None if one of the two is constant."""
        if not self.num_tokens:
            return None
        x, y, xx, yy, xy = self._sums / self.num_tokens
        spread = math.sqrt(max(xx - x * x, 0.0) * max(yy - y * y, 0.0))
        return float(xy - x * y) / spread if spread else None

    @property
    def largest(self) -> list[Credit]:
        """Rollouts whose mean advantage changed most, the largest change first."""
        return [credit for _, _, credit in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))]


def has_no_signal(group: Sequence[Values | None]) -> bool:
    """Whether all advantages of a group are 0."""
    return not any(values.any() for values in group if values is not None)
