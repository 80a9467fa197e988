"""Scores of two sides (see `pairs`) on the same tasks: means, difference, number of tasks where a side is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from agentrl.replay.base import ALL, Cell
from agentrl.replay.compare.pairs import Pair
from agentrl.stats.base import Estimate
from agentrl.stats.intervals import paired_difference, sign_test

COLUMNS = ("source", "tasks", "A", "B", "B - A", "better / worse", "p")


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """Comparison on one data source, or on all data sources.

    Attributes:
        tasks: number of tasks.
        a, b: mean score of A and B: the mean over tasks of each task's mean score.
        difference: b - a.
        better, worse, same: number of tasks on which B's mean is above, below, or equal to A's.
        p: p-value of the sign test.
    """

    source: str
    tasks: int
    a: float
    b: float
    difference: Estimate
    better: int
    worse: int
    same: int
    p: float

    def cells(self) -> list[Cell]:
        """Return a table row with columns `COLUMNS`."""
        counts = f"{self.better}/{self.worse}"
        return [self.source, self.tasks, self.a, self.b, self.difference, counts, float(f"{self.p:.2g}")]

    def values(self) -> Mapping[str, object]:
        """All fields, machine-readable."""
        return asdict(self)

    def summary(self) -> str:
        """Return a one-line summary."""
        tasks = f"over {self.tasks:,} tasks (A {self.a:.4g}, B {self.b:.4g})"
        return f"B - A = {self.difference} {tasks}; B better on {self.better}, worse on {self.worse}, p {self.p:.2g}"


def score_lines(pairs: Sequence[Pair], level: float) -> list[ScoreLine]:
    """One line per data source if there are several sources; the last line is over all tasks."""
    sources = sorted({pair.key[0] for pair in pairs})
    parts = [(source, [pair for pair in pairs if pair.key[0] == source]) for source in sources]
    return [_line(name, part, level) for name, part in [*(parts if len(parts) > 1 else ()), (ALL, pairs)]]


def _line(name: str, pairs: Sequence[Pair], level: float) -> ScoreLine:
    scores = [(pair.scores(0), pair.scores(1)) for pair in pairs]
    means = [(fmean(a), fmean(b)) for a, b in scores]
    better, worse = sum(b > a for a, b in means), sum(b < a for a, b in means)
    return ScoreLine(
        name,
        len(means),
        fmean(a for a, _ in means),
        fmean(b for _, b in means),
        paired_difference(scores, level),
        better,
        worse,
        len(means) - better - worse,
        sign_test(better, worse),
    )
