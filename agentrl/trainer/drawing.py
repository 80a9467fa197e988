"""Where the lines, ticks and readings of a chart lie on the page. Pure numbers, no markup."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from agentrl.trainer.charts import Chart, Point, Series
from agentrl.trainer.figures import exponent, is_plain, number, percent, scientific

WIDTH, HEIGHT = 440, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 26  # left: at least, and as far as the longest label needs
_CHARACTER = 6.5  # width of one
_FLAT = 1e-6  # a spread below this share of the values is drawn as none: float32 says no more
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
    """A chart in units of its WIDTH x HEIGHT box; ticks are (position, label), `left` is where its lines may begin."""

    title: str
    summary: str
    lines: list[Line]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    columns: list[Column]
    left: float


def draw(chart: Chart) -> Drawing:
    """Lay a chart out; it has at least one point."""
    steps = sorted({step for series in chart.series for step, _ in series.points})
    y_ticks = _y_ticks(chart)
    labels, write = _tick_labels(y_ticks, chart.write), _reading(y_ticks, chart.write)
    left = max(_LEFT, _CHARACTER * max(map(len, labels)) + 6)
    x_of = _scale(steps[0], steps[-1], left, WIDTH - _RIGHT)
    y_of = _scale(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    x_ticks = [tick for tick in _ticks(steps[0], steps[-1], 6) if steps[0] <= tick <= steps[-1] and tick == round(tick)]
    return Drawing(
        title=chart.title,
        summary="; ".join(_summary(series, write) for series in chart.series),
        lines=[_line(series, x_of, y_of, write) for series in chart.series],
        x_ticks=[(x_of(tick), f"{tick:,.0f}") for tick in x_ticks],
        y_ticks=[(y_of(tick), label) for tick, label in zip(y_ticks, labels, strict=True)],
        columns=list(_columns(chart._replace(write=write), steps, x_of, y_of, left)),
        left=left,
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
    size, span = max(abs(low), abs(high)), high - low
    if span <= _FLAT * size:
        span = size or 1.0
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


def _tick_labels(ticks: Sequence[float], write: Callable[[float], str]) -> list[str]:
    """As many digits as tell one from the next; the same kind of number along the whole axis."""
    scale, unit = (100, "%") if write is percent else (1, "")
    apart = scale * (ticks[1] - ticks[0])
    last_digit = exponent(apart * (1 + 1e-9))  # 0.3 - 0.2 is not quite 0.1
    readable = is_plain(scale * max(map(abs, ticks)))

    def label(value: float) -> str:
        if abs(value) < apart / 2:
            return "0"
        if readable:
            return f"{value:,.{max(0, -last_digit)}f}{unit}"
        return f"{scientific(value, exponent(value) - last_digit)}{unit}"

    return [label(scale * tick) for tick in ticks]


def _reading(ticks: Sequence[float], write: Callable[[float], str]) -> Callable[[float], str]:
    """`write`, with one digit more than the ticks have where they need many."""
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
    chart: Chart,
    steps: Sequence[float],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
    left_edge: float,
) -> Iterator[Column]:
    """Values to be read under the pointer, at steps spread evenly."""
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
