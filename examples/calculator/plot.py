"""Draw the README's figure from the last quickstart: success on held-out tasks by step.

python examples/calculator/plot.py --run outputs/quickstart --out docs/images/quickstart.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from agentrl.reporting.chart_layout import HEIGHT, WIDTH, Drawing, draw
from agentrl.reporting.charts import Chart, Point, Series
from agentrl.reporting.formatting import percent
from agentrl.reporting.svg import TITLE, document, panel, text
from agentrl.telemetry.jsonl import read_metrics

CAPTION = 26  # room below the charts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("outputs/quickstart"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/quickstart.svg"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(picture(arguments.run), encoding="utf-8")


def picture(run: Path) -> str:
    """Draw the two validation curves side by side; a ring at the end of each curve is the result on the test tasks."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    names = {
        "sft": f"1. Cold start (SFT), {summary['sft_seconds']:.0f} s",
        "rl": f"2. GRPO, {summary['rl_seconds']:.0f} s",
    }
    results = {"sft": summary["success_before"], "rl": summary["success_after"]}
    panels = [
        chart(title, success_curve(run / name / "metrics.jsonl"), results[name], color)
        for (name, title), color in zip(names.items(), ("pale", "c0"), strict=True)
    ]
    caption = (
        f"Sampled at temperature 1, seed {summary['seed']}, one CPU thread. "
        f"Rings: {summary['num_test_tasks']} test tasks, {summary['samples_per_task']} samples each."
    )
    placed = [f'<g transform="translate({i * WIDTH} 0)">\n{body}\n</g>' for i, body in enumerate(panels)]
    height = TITLE + HEIGHT + CAPTION
    return document(2 * WIDTH, height, [*placed, text(WIDTH, height - 8, caption)], f"Success by steps. {caption}")


def success_curve(metrics: Path) -> list[Point]:
    """Return (step, success of sampled rollouts on the validation tasks) for each step with a validation."""
    return [(row["step"], row["val/success"]) for row in read_metrics(metrics) if "val/success" in row]


def chart(title: str, curve: Sequence[Point], result: float, color: str) -> str:
    """Draw one curve on an axis from 0 to 100%, with the test result at the end of the curve."""
    full = Series("axis", [(curve[0][0], 0.0), (curve[-1][0], 1.0)])  # not drawn; gives both charts the same axis
    drawing = draw(Chart(title, [full, Series("held-out", list(curve))], percent, "success on held-out tasks"))
    body = panel(drawing._replace(lines=drawing.lines[1:]), [color])
    return "\n".join([*body, *test_result(drawing, result, color)])


def test_result(drawing: Drawing, success: float, color: str) -> list[str]:
    """Draw the test result: a ring at the right end of the chart, and its percentage."""
    (low, _), (high, _) = drawing.y_ticks[0], drawing.y_ticks[-1]
    y = TITLE + low + success * (high - low)
    ring = f'<circle class="ring {color}" cx="{drawing.right:g}" cy="{y:.1f}" r="5"/>'
    return [ring, text(drawing.right - 26, y + (20 if success > 0.8 else -12), f"{success:.1%}", f"name {color}")]


if __name__ == "__main__":
    main()
