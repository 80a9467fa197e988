"""Layout of a chart: positions of lines, ticks, axis names and tooltips, as numbers without markup."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from agentrl.reporting.charts import FLAT, Chart, Point, Series
from agentrl.reporting.formatting import exponent, is_plain, number, percent, scientific

WIDTH, HEIGHT = 440, 236
BOTTOM = HEIGHT - 42
"""y-position of the x-axis; the ticks and the axis name are below this position."""

_LEFT, _RIGHT, _TOP = 62, 12, 10  # margins; _LEFT is a minimum: long labels need more space
_AXIS_NAME = 20  # space for the name of the y-axis
_CHARACTER = 6.5  # width of one character
_MAX_COLUMNS = 60  # maximum number of positions with a tooltip
_SMOOTH_FROM = 30  # lines with at least this many points are smoothed


class Line(NamedTuple):
    """A drawn series.

    Attributes:
        last: the last value, as text.
        path: SVG path of the values, or of their moving average if the series is long.
        faint: SVG path of the values if `path` is a moving average; else "".
        dots: the points of a short series, to be marked; empty for a long series.
    """

    label: str
    last: str
    path: str
    faint: str
    dots: list[Point]


class Column(NamedTuple):
    """One position on the x-axis and its tooltip. The tooltip appears if the pointer is over the strip of the position.

    Attributes:
        x: the position.
        left, width: left edge and width of the strip.
        step: the step at this position, as text.
        readings: (index of the line, y, text) for each line with a point at this position.
    """

    x: float
    left: float
    width: float
    step: str
    readings: list[tuple[int, float, str]]


class Drawing(NamedTuple):
    """A chart in coordinates of its WIDTH x HEIGHT box.

    Attributes:
        x_ticks, y_ticks: (position, label) of each tick.
        left, right: horizontal limits of the lines.
        x_name, y_name: names of the axes.
    """

    title: str
    summary: str
    lines: list[Line]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    columns: list[Column]
    left: float
    right: float
    x_name: str
    y_name: str


def draw(chart: Chart, x_name: str = "step") -> Drawing:
    """Lay out a chart that has at least one point. `x_name`: name of the x-axis."""
    steps = sorted({step for series in chart.series for step, _ in series.points})
    y_ticks = _y_ticks(chart)
    labels, write = _tick_labels(y_ticks, chart.write), _reading(y_ticks, chart.write)
    left = max(_LEFT, _AXIS_NAME + _CHARACTER * max(map(len, labels)) + 6)
    x_of = _scale(steps[0], steps[-1], left, WIDTH - _RIGHT)
    y_of = _scale(y_ticks[0], y_ticks[-1], BOTTOM, _TOP)
    x_ticks = [tick for tick in _ticks(steps[0], steps[-1], 6) if steps[0] <= tick <= steps[-1] and tick == round(tick)]
    return Drawing(
        title=chart.title,
        summary="; ".join(_summary(series, write) for series in chart.series),
        lines=[_line(series, x_of, y_of, write) for series in chart.series],
        x_ticks=[(x_of(tick), f"{tick:,.0f}") for tick in x_ticks],
        y_ticks=[(y_of(tick), label) for tick, label in zip(y_ticks, labels, strict=True)],
        columns=list(_columns(chart._replace(write=write), steps, x_of, y_of, left)),
        left=left,
        right=WIDTH - _RIGHT,
        x_name=x_name,
        y_name=chart.unit,
    )


def moving_average(values: Sequence[float], reach: int) -> list[float]:
    """Return the mean of each value and its neighbours: up to `reach` neighbours on each side."""
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return a linear map from [low, high] to [start, end]; if low equals high, the map returns the middle."""
    if low == high:
        return lambda value: (start + end) / 2
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers that cover the range from `low` to `high`: about `most` numbers, or fewer."""
    size, span = max(abs(low), abs(high)), high - low
    if span <= FLAT * size:
        span = size or 1.0
    magnitude = 10.0 ** math.floor(math.log10(span / most))
    step = next(magnitude * factor for factor in (1, 2, 5, 10, 20) if magnitude * factor * most >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _y_ticks(chart: Chart) -> list[float]:
    low, high = min(chart.values), max(chart.values)
    if chart.write is percent and 0 <= low <= high <= 1 and (high > 0.3 or chart.is_flat):
        return _ticks(0.0, 1.0, 5)
    if high - low <= max(chart.noise, FLAT * max(abs(low), abs(high))):
        low, high = _around(low, chart.noise)
    elif 0 < low < high / 2:
        low = 0.0  # the values differ by more than a factor of 2: show them relative to 0
    return _ticks(low, high, 5)


def _around(value: float, noise: float) -> tuple[float, float]:
    """Return axis limits for a constant value: the value is in the middle, or at the bottom if it is 0."""
    return (0.0, 1.0) if abs(value) <= noise else (value - abs(value) / 2, value + abs(value) / 2)


def _tick_labels(ticks: Sequence[float], write: Callable[[float], str]) -> list[str]:
    """Return tick labels with enough digits to differ, all in the same notation."""
    scale, unit = (100, "%") if write is percent else (1, "")
    apart = scale * (ticks[1] - ticks[0])
    last_digit = exponent(apart * (1 + 1e-9))  # as floats, 0.3 - 0.2 is slightly below 0.1
    readable = is_plain(scale * max(map(abs, ticks)))

    def label(value: float) -> str:
        if abs(value) < apart / 2:
            return "0"
        if readable:
            return f"{value:,.{max(0, -last_digit)}f}{unit}"
        return f"{scientific(value, exponent(value) - last_digit)}{unit}"

    return [label(scale * tick) for tick in ticks]


def _reading(ticks: Sequence[float], write: Callable[[float], str]) -> Callable[[float], str]:
    """Return the function that formats the numbers in tooltips: usually `write`.

    If `write` is `number`, the function shows at least one digit more than the ticks.
    """
    if write is not number:
        return write
    return partial(number, digits=max(3, exponent(max(map(abs, ticks))) - exponent(ticks[1] - ticks[0]) + 2))


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
    """Reduce to at most `most` points by averaging neighbours, to keep pages of long runs small."""
    if len(points) <= most:
        return list(points)
    edges = [i * len(points) // most for i in range(most + 1)]
    return [_mean_point(points[a:b]) for a, b in pairwise(edges)]


def _mean_point(points: Sequence[Point]) -> Point:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _columns(
    chart: Chart,
    steps: Sequence[float],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
    left_edge: float,
) -> Iterator[Column]:
    """Yield a column for every step of the chart, or for `_MAX_COLUMNS` steps with even gaps if it has more steps."""
    num_columns = min(_MAX_COLUMNS, len(steps))
    chosen = [steps[round(i * (len(steps) - 1) / max(1, num_columns - 1))] for i in range(num_columns)]
    values = [dict(series.points) for series in chart.series]
    centres = [x_of(step) for step in chosen]
    edges = [left_edge, *((a + b) / 2 for a, b in pairwise(centres)), float(WIDTH - _RIGHT)]
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
