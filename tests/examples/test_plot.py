"""The README's plot is drawn from the files of a run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentrl.registry import load_object
from agentrl.reporting.chart_layout import BOTTOM
from agentrl.reporting.svg import TITLE

picture = load_object(f"{Path(__file__).parents[2] / 'examples/calculator/plot.py'}:picture")
TOP = 10


def write_run(folder, name, curve):
    (folder / name).mkdir()
    rows = [{"step": step} | ({} if success is None else {"val/success": success}) for step, success in curve]
    (folder / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def drawn(tmp_path) -> ElementTree.Element:
    write_run(tmp_path, "sft", [(0, 0.0), (50, None), (100, 0.2)])
    write_run(tmp_path, "rl", [(0, 0.2), (10, 1.0)])
    summary = {"success_before": 0.25, "success_after": 0.75, "num_test_tasks": 512, "samples_per_task": 2}
    summary |= {"sft_seconds": 60, "rl_seconds": 30, "seed": 3}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return ElementTree.fromstring(picture(tmp_path))


def height_of(success: float) -> float:
    return BOTTOM + success * (TOP - BOTTOM)


def heights(path: str) -> list[float]:
    return [float(place.split()[1]) for place in path.removeprefix("M").split("L")]


def test_picture_shows_curves_and_test_results_at_measured_steps(drawn):
    sft, rl = (heights(path.get("d")) for path in drawn.iterfind(".//{*}path[@d]") if "line" in path.get("class"))
    assert sft == pytest.approx([height_of(0.0), height_of(0.2)], abs=0.1)
    assert rl == pytest.approx([height_of(0.2), height_of(1.0)], abs=0.1)
    rings = [float(each.get("cy")) for each in drawn.iterfind(".//{*}circle") if "ring" in each.get("class")]
    assert rings == pytest.approx([TITLE + height_of(0.25), TITLE + height_of(0.75)], abs=0.1)
    assert {"25.0%", "75.0%"} <= {text.text for text in drawn.iterfind(".//{*}text")}


def test_axes_have_names_round_ticks_and_a_dark_variant(drawn):
    texts = [text.text for text in drawn.iterfind(".//{*}text")]
    assert texts.count("step") == 2
    assert texts.count("100%") == 2
    assert {"0", "20", "40", "60", "80", "100"} <= set(texts)
    assert "prefers-color-scheme: dark" in drawn.find("{*}style").text
