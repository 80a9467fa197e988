"""Draw the picture of the README from the last quickstart: held-out success, update by update.

python examples/calculator/plot.py --run outputs/quickstart --out docs/images/quickstart.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl.telemetry.jsonl import read_metrics

WIDTH, HEIGHT = 760, 300
TOP, BOTTOM, LEFT, RIGHT = 46, 252, 56, 740
MIDDLE = 330  # where the cold start ends and RL begins
PALE, STRONG, TEXT, GRID = "#8a94a6", "#1f6feb", "#57606a", "#d0d7de"  # readable on white and on dark
Point = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("outputs/quickstart"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/quickstart.svg"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(picture(arguments.run), encoding="utf-8")


def picture(run: Path) -> str:
    """The two validation curves side by side, with what the untouched test set says at their ends."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    sft, rl = (success_curve(run / name / "metrics.jsonl") for name in ("sft", "rl"))
    body = [
        *map(horizontal_line, (0, 0.25, 0.5, 0.75, 1)),
        *panel(sft, (LEFT, MIDDLE), "cold start", f"{summary['sft_seconds']:.0f} s", PALE),
        *panel(rl, (MIDDLE, RIGHT), "GRPO", f"{summary['rl_seconds']:.0f} s", STRONG),
        f'<line x1="{MIDDLE}" y1="{TOP - 10}" x2="{MIDDLE}" y2="{BOTTOM}" stroke="{GRID}" stroke-dasharray="3 3"/>',
        *test_result(MIDDLE, summary["success_before"], PALE),
        *test_result(RIGHT, summary["success_after"], STRONG),
    ]
    title = (
        f"Success on held-out tasks, sampled at temperature 1, seed {summary['seed']}, one CPU thread. "
        f"Rings: {summary['num_test_tasks']} test tasks x {summary['samples_per_task']}."
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
            ' font-family="system-ui, sans-serif" font-size="12">',
            f"<title>{title}</title>",
            *body,
            label(WIDTH / 2, HEIGHT - 8, title),
            "</svg>\n",
        ]
    )


def success_curve(metrics: Path) -> list[Point]:
    """(step, sampled success on the validation tasks), where it was measured."""
    return [(row["step"], row["val/success"]) for row in read_metrics(metrics) if "val/success" in row]


def panel(curve: Sequence[Point], span: tuple[int, int], name: str, seconds: str, color: str) -> list[str]:
    """One curve between two places on the x-axis, with its name above and its steps below."""
    last_step = max(step for step, _ in curve)
    x_of = scale((0, last_step), span)
    points = " ".join(f"{x_of(step):.1f},{y_of(success):.1f}" for step, success in curve)
    center = sum(span) / 2
    return [
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5" stroke-linejoin="round"/>',
        label(center, TOP - 22, f"{name}: {last_step:.0f} steps, {seconds}", color, "bold"),
        *(label(x_of(share * last_step), BOTTOM + 18, f"{share * last_step:.0f}") for share in (0.25, 0.5, 0.75)),
    ]


def test_result(x: float, success: float, color: str) -> list[str]:
    y = y_of(success)
    return [
        f'<circle cx="{x}" cy="{y:.1f}" r="5" fill="none" stroke="{color}" stroke-width="2.5"/>',
        label(x - 26, y - 12, f"{success:.1%}", color, "bold"),
    ]


def horizontal_line(success: float) -> str:
    y = y_of(success)
    line = f'<line x1="{LEFT}" y1="{y}" x2="{RIGHT}" y2="{y}" stroke="{GRID}" stroke-width="0.7"/>'
    return line + label(LEFT - 22, y + 4, f"{success:.0%}")


def label(x: float, y: float, text: str, color: str = TEXT, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="{color}" font-weight="{weight}">{text}</text>'


def scale(domain: tuple[float, float], span: tuple[float, float]) -> Callable[[float], float]:
    (low, high), (start, end) = domain, span
    return lambda value: start + (value - low) / (high - low) * (end - start)


y_of = scale((0, 1), (BOTTOM, TOP))

if __name__ == "__main__":
    main()
