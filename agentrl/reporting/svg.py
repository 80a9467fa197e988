"""Charts as separate SVG images that follow the light or dark setting of the browser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from agentrl.reporting.chart_layout import BOTTOM, HEIGHT, Drawing

TITLE = 26
"""Height reserved above a chart for its title."""

_STYLE = """
svg { --ink: #57606a; --soft: #57606a; --grid: #d0d7de; --c0: #1f6feb; --c1: #c2570c; --c2: #0d7d73; --pale: #8a94a6 }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e8eaee; --soft: #9aa3b0; --grid: #3a424d; --c0: #6ea3ff; --c1: #f5a742; --c2: #3fc9bb; --pale: #7d8796 }
}
text { fill: var(--soft) } .title { fill: var(--ink); font-weight: bold }
.grid { stroke: var(--grid); stroke-width: .7 } .line, .ring { fill: none; stroke-width: 2; stroke-linejoin: round }
.c0 { --c: var(--c0) } .c1 { --c: var(--c1) } .c2 { --c: var(--c2) } .pale { --c: var(--pale) }
.line, .ring { stroke: var(--c) } .dot { fill: var(--c) } .name { fill: var(--c); font-weight: bold }
"""
COLORS = ("c0", "c1", "c2", "pale")
"""CSS classes for the colors of lines and of the lines' names."""


def document(width: float, height: float, body: Iterable[str], title: str = "") -> str:
    """Return the SVG file; `title` is for screen readers."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"'
            ' font-family="system-ui, sans-serif" font-size="12">',
            *([f"<title>{escape(title)}</title>"] if title else []),
            f"<style>{_STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )


def panel(drawing: Drawing, colors: Sequence[str]) -> list[str]:
    """Return one chart below its title, in a box of `WIDTH` x (`TITLE` + `HEIGHT`). `colors`: a CSS class per line."""
    middle = (drawing.left + drawing.right) / 2
    return [
        text(middle, 14, drawing.title, "title"),
        f'<g transform="translate(0 {TITLE})">',
        *axes(drawing),
        *(
            line
            for each, color in zip(drawing.lines, colors, strict=True)
            for line in _line(each.path, each.dots, color)
        ),
        "</g>",
    ]


def axes(drawing: Drawing) -> list[str]:
    """Return grid, ticks and names of both axes."""
    middle = (drawing.left + drawing.right) / 2
    grid = [f'<path class="grid" d="M{drawing.left:g} {y:g}H{drawing.right:g}"/>' for y, _ in drawing.y_ticks]
    y_labels = [text(drawing.left - 6, y + 4, label, anchor="end") for y, label in drawing.y_ticks]
    x_labels = [text(x, BOTTOM + 17, label) for x, label in drawing.x_ticks]
    y_name = f'<g transform="translate(12 {BOTTOM / 2:g}) rotate(-90)">{text(0, 0, drawing.y_name)}</g>'
    return [*grid, *y_labels, *x_labels, text(middle, HEIGHT - 6, drawing.x_name), y_name]


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "middle") -> str:
    """Return a line of text. `kind`: the CSS classes of the text: "title", or "name" and a class of `COLORS`."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{named}>{escape(content)}</text>'


def _line(path: str, dots: Sequence[tuple[float, float]], color: str) -> list[str]:
    circles = [f'<circle class="dot {color}" cx="{x:g}" cy="{y:g}" r="2.6"/>' for x, y in dots]
    return [f'<path class="line {color}" d="{path}"/>', *circles]
