"""Learning curves of several sides and seeds as one SVG: success over steps, and over seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from agentrl.trainer.charts import Chart, Series
from agentrl.trainer.drawing import HEIGHT, WIDTH, Drawing, draw
from agentrl.trainer.figures import percent

COLORS = ("#1f6feb", "#8a94a6", "#d4762c")  # readable on white and on dark
TEXT, GRID = "#57606a", "#d0d7de"
TOP = 34  # room for the titles

Curve = Sequence[tuple[float, float, float]]
"""(step, seconds, success)"""


def draw_curves(curves: Mapping[str, Sequence[Curve]]) -> str:
    """Both panels; a side has one color, and a line a seed."""
    panels = (panel(curves, 0, "Success on held-out tasks, by steps"), panel(curves, 1, "by seconds of training"))
    apart = max(60, *(9 * len(name) for name in curves))
    left = WIDTH - 40 - apart * (len(curves) - 1)
    legend = (text(left + apart * i, 16, name, COLORS[i], "bold") for i, name in enumerate(curves))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT + TOP}" role="img"'
            ' font-family="system-ui, sans-serif" font-size="12">',
            *legend,
            *(f'<g transform="translate({i * WIDTH} {TOP})">\n{body}\n</g>' for i, body in enumerate(panels)),
            "</svg>\n",
        ]
    )


def panel(curves: Mapping[str, Sequence[Curve]], axis: int, title: str) -> str:
    lines = [(name, [(point[axis], point[2]) for point in curve]) for name, seeds in curves.items() for curve in seeds]
    drawing = draw(Chart(title, [Series(name, points) for name, points in lines], percent))
    colors = [COLORS[list(curves).index(name)] for name, _ in lines]
    return "\n".join([text(WIDTH / 2, -2, title, TEXT, "bold"), *axes(drawing), *paths(drawing, colors)])


def axes(drawing: Drawing) -> list[str]:
    grid = [
        f'<line x1="46" x2="{WIDTH - 12}" y1="{y}" y2="{y}" stroke="{GRID}" stroke-width="0.7"/>'
        for y, _ in drawing.y_ticks
    ]
    y_labels = [text(40, y + 4, label, TEXT, anchor="end") for y, label in drawing.y_ticks]
    return [*grid, *y_labels, *(text(x, HEIGHT - 8, label, TEXT) for x, label in drawing.x_ticks)]


def paths(drawing: Drawing, colors: Sequence[str]) -> list[str]:
    return [
        f'<path d="{line.path}" fill="none" stroke="{color}" stroke-width="2" stroke-linejoin="round"/>'
        for line, color in zip(drawing.lines, colors, strict=True)
    ]


def text(x: float, y: float, content: str, color: str, weight: str = "normal", anchor: str = "middle") -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text {place} fill="{color}" font-weight="{weight}">{escape(content)}</text>'
