"""Where the lines, ticks and readings of a chart lie on the page. Pure numbers, no markup."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from agentrl.trainer.charts import Chart, Point, Series
from agentrl.trainer.figures import percent

WIDTH, HEIGHT = 440, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 26
_MAX_COLUMNS = 60  # places that show their values under the pointer
_SMOOTH_FROM = 30  # points from which on a noisy line gets a moving average


class Line(NamedTuple):
    """A series as drawn: `faint` is every step where `path` is a moving average; `dots` mark sparse points."""

    label: str
    last: str
    path: str
    faint: str
    dots: list[Point]


class Column(NamedTuple):
    """One place along the steps, and what is read there: (line number, y, text)."""

    x: float
    left: float
    width: float
    step: str
    readings: list[tuple[int, float, str]]


class Drawing(NamedTuple):
    """A chart in units of its WIDTH x HEIGHT box; ticks are (position, label)."""

    title: str
    summary: str
    lines: list[Line]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    columns: list[Column]


def draw(chart: Chart) -> Drawing:
    """Lay a chart out; it has at least one point."""
    steps = sorted({step for series in chart.series for step, _ in series.points})
    x_of = _scale(steps[0], steps[-1], _LEFT, WIDTH - _RIGHT)
    y_ticks = _y_ticks(chart)
    y_of = _scale(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    x_ticks = [tick for tick in _ticks(steps[0], steps[-1], 6) if steps[0] <= tick <= steps[-1] and tick == round(tick)]
    return Drawing(
        title=chart.title,
        summary="; ".join(_summary(series, chart.write) for series in chart.series),
        lines=[_line(series, x_of, y_of, chart.write) for series in chart.series],
        x_ticks=[(x_of(tick), f"{tick:,.0f}") for tick in x_ticks],
        y_ticks=[(y_of(tick), _tick_label(tick, y_ticks, chart.write)) for tick in y_ticks],
        columns=list(_columns(chart, steps, x_of, y_of)),
    )


def moving_average(values: Sequence[float], reach: int) -> list[float]:
    """The mean of each value with `reach` neighbours on either side, as far as there are any: it does not lag."""
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From a value between low and high to a place between start and end; everything in the middle if they are one."""
    if low == high:
        return lambda value: (start + end) / 2
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers that reach over low to high, at most about `most` of them."""
    span = (high - low) or abs(high) or 1.0
    magnitude = 10.0 ** math.floor(math.log10(span / most))
    step = next(magnitude * factor for factor in (1, 2, 5, 10, 20) if magnitude * factor * most >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _y_ticks(chart: Chart) -> list[float]:
    values = [value for series in chart.series for _, value in series.points]
    low, high = min(values), max(values)
    if 0 < low < high / 2:
        low = 0.0  # a curve that falls towards zero is read against zero
    if chart.write is percent and 0.3 < high <= 1 and low >= 0:
        low, high = 0.0, 1.0
    return _ticks(low, high, 5)


def _tick_label(tick: float, ticks: Sequence[float], write: Callable[[float], str]) -> str:
    if abs(tick) < 1e-9 * (ticks[-1] - ticks[0]):
        return "0"
    return f"{100 * tick:.3g}%" if write is percent else write(tick)


def _line(
    series: Series, x_of: Callable[[float], float], y_of: Callable[[float], float], write: Callable[[float], str]
) -> Line:
    placed = [(x_of(step), y_of(value)) for step, value in _thinned(series.points, 2 * (WIDTH - _LEFT - _RIGHT))]
    path, faint = _path(placed), ""
    if len(placed) >= _SMOOTH_FROM:
        smooth = moving_average([y for _, y in placed], len(placed) // 24 + 1)
        faint, path = path, _path([(x, round(y, 1)) for (x, _), y in zip(placed, smooth, strict=True)])
    dots = placed if len(placed) < _SMOOTH_FROM else []
    return Line(series.label, write(series.points[-1][1]), path, faint, dots)


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points: means of neighbours, so that a long run does not make a heavy page."""
    if len(points) <= most:
        return list(points)
    edges = [i * len(points) // most for i in range(most + 1)]
    return [_mean_point(points[a:b]) for a, b in pairwise(edges)]


def _mean_point(points: Sequence[Point]) -> Point:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _columns(
    chart: Chart, steps: Sequence[float], x_of: Callable[[float], float], y_of: Callable[[float], float]
) -> Iterator[Column]:
    """Values to be read under the pointer, at steps spread evenly."""
    num_columns = min(_MAX_COLUMNS, len(steps))
    chosen = [steps[round(i * (len(steps) - 1) / max(1, num_columns - 1))] for i in range(num_columns)]
    values = [dict(series.points) for series in chart.series]
    centres = [x_of(step) for step in chosen]
    edges = [float(_LEFT), *((a + b) / 2 for a, b in pairwise(centres)), float(WIDTH - _RIGHT)]
    for step, centre, (left, right) in zip(chosen, centres, pairwise(edges), strict=True):
        readings = [
            (i, y_of(at[step]), f"{series.label} {chart.write(at[step])}")
            for i, (series, at) in enumerate(zip(chart.series, values, strict=True))
            if step in at
        ]
        yield Column(centre, round(left, 1), round(right - left, 1), f"step {step:,.0f}", readings)


def _summary(series: Series, write: Callable[[float], str]) -> str:
    (first, start), (last, end) = series.points[0], series.points[-1]
    return f"{series.label} from {write(start)} at step {first:,.0f} to {write(end)} at step {last:,.0f}"
