"""Chooses which metrics of a run share a chart, and labels the lines of the charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from agentrl.reporting.chart_topics import NOISE, NOISY, TOPICS
from agentrl.reporting.formatting import number, percent, reward_parts, tool_outcomes
from agentrl.reporting.health.reward_rules import GUARD_METRICS
from agentrl.telemetry.metrics import find_metric

Point = tuple[float, float]
"""(step, value)"""
History = Sequence[Mapping[str, float]]
"""One mapping per step: metric -> finite value, and the number of the step under the key `step`."""
FLAT = 1e-6
"""A series with a smaller relative spread is drawn as constant: its differences may be float32 rounding errors."""

_LARGEST = 1e300  # larger values are not drawn: their sums and differences overflow
_PARTS_AFTER = 2  # reward components follow the first two charts, success and reward


class Series(NamedTuple):
    """One line of a chart."""

    label: str
    points: list[Point]


class Chart(NamedTuple):
    """Lines that share their axes.

    Attributes:
        unit: unit of the values, which is also the name of the y-axis.
        noise: differences up to this size are rounding noise.
        always: whether the chart is drawn even if its values never change.
    """

    title: str
    series: list[Series]
    write: Callable[[float], str] = number
    unit: str = "value"
    noise: float = 0.0
    always: bool = False

    @property
    def values(self) -> list[float]:
        """The values of all lines."""
        return [value for series in self.series for _, value in series.points]

    @property
    def is_flat(self) -> bool:
        """Whether no line changes by more than rounding noise."""
        return all(_is_flat([value for _, value in series.points], self.noise) for series in self.series)

    @property
    def is_constant(self) -> bool:
        """Whether text replaces the chart: `always` is False, no line changes, and some line has two or more points."""
        return not self.always and self.is_flat and any(len(series.points) > 1 for series in self.series)


def charts(history: History) -> tuple[list[Chart], list[Chart]]:
    """Return (main charts, one chart for each remaining metric).

    Main charts: one per topic of `TOPICS`, one per reward component, one per metric that agentrl does not declare, one
    of tool calls, and one of guards.
    """
    names = {name for row in history for name in row}
    main = [
        Chart(topic.title, _lines(history, topic.lines), topic.write, topic.unit, topic.noise, topic.always)
        for topic in TOPICS
    ]
    place = _PARTS_AFTER
    parts = [
        Chart(f"Reward: {part}", _lines(history, _both(f"reward/{part}")), number, part) for part in reward_parts(names)
    ]
    others = [
        Chart("Tool calls by outcome", _outcome_shares(history), percent, "share of calls", NOISE),
        Chart("Guards raised", _guard_shares(history), percent, "share of rollouts", NOISE),
    ]
    own = [name for name in sorted(names - {"step"}) if find_metric(name) is None]
    main[place:place] = [*parts, *(_single(history, name) for name in own), *others]
    shown = {name for topic in TOPICS for _, name in topic.lines} | {"step", *own, *_guards(names)}
    shown |= {name for part in reward_parts(names) for _, name in _both(f"reward/{part}")}
    rest = [_single(history, name) for name in sorted(names - shown)]
    return _with_lines(main), _with_lines(rest)


def constants(drawn: Iterable[Chart]) -> list[tuple[str, str]]:
    """Return (name, value) of each line of the charts that text replaces (see `Chart.is_constant`)."""
    return [
        (chart.title if len(chart.series) == 1 else f"{chart.title}, {series.label}", _rounded(chart, series))
        for chart in drawn
        if chart.is_constant
        for series in chart.series
    ]


def _rounded(chart: Chart, series: Series) -> str:
    value = series.points[-1][1]
    return chart.write(value if abs(value) > chart.noise else 0.0)


def _is_flat(values: Sequence[float], noise: float) -> bool:
    low, high = min(values), max(values)
    return high - low <= max(noise, FLAT * max(abs(low), abs(high)))


def _family(name: str) -> str:
    return name.removeprefix("val/").partition("/")[0]


def _both(name: str) -> tuple[tuple[str, str], ...]:
    return ("training", name), ("held-out", f"val/{name}")


def _single(history: History, name: str) -> Chart:
    return Chart(name, _lines(history, ((name, name),)), noise=NOISE if _family(name) in NOISY else 0.0)


def _with_lines(drawn: Iterable[Chart]) -> list[Chart]:
    return [chart for chart in drawn if chart.series]


def _lines(history: History, lines: Iterable[tuple[str, str]]) -> list[Series]:
    return [Series(label, points) for label, name in lines if (points := _points(history, name))]


def _points(history: History, name: str) -> list[Point]:
    return [(row["step"], row[name]) for row in history if abs(row.get(name, math.inf)) <= _LARGEST]


def _outcome_shares(history: History) -> list[Series]:
    shares: dict[str, list[Point]] = {}
    counted = [(row["step"], tool_outcomes(row)) for row in history]
    for outcome in dict.fromkeys(outcome for _, counts in counted for outcome in counts):
        shares[outcome] = [(step, counts.get(outcome, 0) / sum(counts.values())) for step, counts in counted if counts]
    return [Series(outcome.replace("_", " "), points) for outcome, points in shares.items()]


def _guard_shares(history: History) -> list[Series]:
    """Return the share of rollouts that raised each guard, without guards that were never raised."""
    names = _guards({name for row in history for name in row})
    series = [Series(name.removeprefix(GUARD_METRICS).replace("_", " "), _points(history, name)) for name in names]
    return [each for each in series if any(share for _, share in each.points)]


def _guards(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(GUARD_METRICS))
