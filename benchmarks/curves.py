"""Draw learning curves of several frameworks or settings as one SVG: success over steps, and over seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.reporting.chart_layout import HEIGHT, WIDTH, draw
from agentrl.reporting.charts import Chart, Series
from agentrl.reporting.formatting import percent
from agentrl.reporting.svg import TITLE, document, panel, text

COLORS = ("c0", "pale", "c1")
LEGEND = 24  # height of the legend

Curve = Sequence[tuple[float, float, float]]
"""(step, seconds, success)"""


def draw_curves(curves: Mapping[str, Sequence[Curve]]) -> str:
    """Return an SVG of two panels: success over steps, and over seconds.

    Each key of `curves` has one color and one line per seed.
    """
    panels = (chart(curves, 0, "Success by steps", "step"), chart(curves, 1, "Success by time", "seconds of training"))
    apart = max(60, *(9 * len(name) for name in curves))
    left = WIDTH - apart * (len(curves) - 1) / 2
    legend = [text(left + apart * i, 16, name, f"name {COLORS[i]}") for i, name in enumerate(curves)]
    placed = [f'<g transform="translate({i * WIDTH} {LEGEND})">\n{body}\n</g>' for i, body in enumerate(panels)]
    return document(2 * WIDTH, HEIGHT + TITLE + LEGEND, [*legend, *placed])


def chart(curves: Mapping[str, Sequence[Curve]], axis: int, title: str, x_name: str) -> str:
    """Return one panel: success over steps (`axis` 0) or over seconds (`axis` 1)."""
    lines = [(name, [(point[axis], point[2]) for point in curve]) for name, seeds in curves.items() for curve in seeds]
    series = [Series(name, points) for name, points in lines]
    drawing = draw(Chart(title, series, percent, "success on held-out tasks"), x_name)
    return "\n".join(panel(drawing, [COLORS[list(curves).index(name)] for name, _ in lines]))
