"""The README's picture is drawn from a run's own files."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from agentrl.registry import load_object

picture = load_object(f"{Path(__file__).parents[2] / 'examples/calculator/plot.py'}:picture")


def write_run(folder, name, curve):
    (folder / name).mkdir()
    rows = [{"step": step} | ({} if success is None else {"val/success": success}) for step, success in curve]
    (folder / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_curves_and_test_results_stand_where_they_were_measured(tmp_path):
    write_run(tmp_path, "sft", [(0, 0.0), (50, None), (100, 0.2)])
    write_run(tmp_path, "rl", [(0, 0.2), (10, 1.0)])
    summary = {"success_before": 0.25, "success_after": 0.75, "num_test_tasks": 512, "samples_per_task": 2}
    summary |= {"sft_seconds": 60, "rl_seconds": 30, "seed": 3}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    root = ElementTree.fromstring(picture(tmp_path))
    sft, rl = (line.get("points") for line in root.iterfind("{*}polyline"))
    assert sft == "56.0,252.0 330.0,210.8"  # 252 is success 0, 46 is success 1
    assert rl == "330.0,210.8 740.0,46.0"
    assert [circle.get("cy") for circle in root.iterfind("{*}circle")] == ["200.5", "97.5"]
    texts = [text.text for text in root.iterfind("{*}text")]
    assert {"25.0%", "75.0%", "cold start: 100 steps, 60 s", "GRPO: 10 steps, 30 s"} <= set(texts)
