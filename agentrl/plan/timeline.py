"""Picture of a simulated run: the work of the trainer, and the number of running rollouts, over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentrl.plan.split.machine import Span
from agentrl.reporting.svg import document, text

WIDTH, HEIGHT = 720, 210
_LEFT, _RIGHT, _BAR_TOP, _BAR, _CURVE_TOP, _BOTTOM = 88, 12, 36, 30, 86, 176
_COLORS = {"learn": "c0", "score": "c2", "publish": "c1"}
_STYLE = (
    "<style>.c0 { fill: var(--c0) } .c1 { fill: var(--c1) } .c2 { fill: var(--c2) } "
    ".area { fill: var(--pale); opacity: .6 } .name { stroke: none }</style>"
)


def timeline(spans: Sequence[Span], end_s: float) -> str:
    """Return an SVG of the spans from the start of the run to `end_s`.

    The trainer's row is white while the trainer waits.

    Raises:
        ValueError: `end_s` is not positive.
    """
    if end_s <= 0:
        raise ValueError(f"a timeline needs an end above 0 s, got {end_s}")
    per_second = (WIDTH - _LEFT - _RIGHT) / end_s
    shown = [span for span in spans if span.start_s < end_s]
    body = [
        _STYLE,
        text(_LEFT - 8, _BAR_TOP + 20, "trainer", anchor="end"),
        text(_LEFT - 8, _CURVE_TOP + 14, "rollouts", anchor="end"),
        *_legend(),
        *(_bar(span, per_second, end_s) for span in shown if span.lane == "trainer"),
        *_curve([span for span in shown if span.lane == "rollouts"], per_second, end_s),
        *_ticks(per_second, end_s),
    ]
    return document(WIDTH, HEIGHT, body, "Work of trainer and engine over time")


def _legend() -> Iterator[str]:
    for place, (name, color) in enumerate(_COLORS.items()):
        x = _LEFT + 90 * place
        yield f'<rect class="{color}" x="{x}" y="8" width="12" height="12"/>'
        yield text(x + 18, 18, name, anchor="start")


def _bar(span: Span, per_second: float, end_s: float) -> str:
    x, width = _LEFT + span.start_s * per_second, (min(span.end_s, end_s) - span.start_s) * per_second
    color = _COLORS.get(span.what, "pale")
    return f'<rect class="{color}" x="{x:.2f}" y="{_BAR_TOP}" width="{max(width, 0.5):.2f}" height="{_BAR}"/>'


def _curve(spans: Sequence[Span], per_second: float, end_s: float) -> Iterator[str]:
    """Yield SVG elements: an area whose height is the number of running rollouts, and its label."""
    changes = sorted([(span.start_s, 1) for span in spans] + [(span.end_s, -1) for span in spans])
    points, running, most = [(0.0, 0)], 0, 1
    for at, change in changes:
        if at > end_s:
            break
        points += [(at, running), (at, running := running + change)]
        most = max(most, running)
    points += [(end_s, running), (end_s, 0)]
    high = (_BOTTOM - _CURVE_TOP) / most
    path = " ".join(f"{_LEFT + at * per_second:.2f},{_BOTTOM - number * high:.2f}" for at, number in points)
    yield f'<polygon class="area" points="{path}"/>'
    yield text(_LEFT - 8, _CURVE_TOP + 30, f"0 to {most}", anchor="end")


def _ticks(per_second: float, end_s: float) -> Iterator[str]:
    for fifth in range(6):
        at = end_s * fifth / 5
        yield text(_LEFT + at * per_second, _BOTTOM + 18, f"{at:.3g} s", anchor="end" if fifth == 5 else "middle")
