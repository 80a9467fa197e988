"""Metric declarations: complete, used wherever metrics are shown, and the source of docs/metrics.md."""

from __future__ import annotations

import json
import math
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.reporting.chart_topics import TOPICS as CHARTS
from agentrl.reporting.console import _HISTORY_ROWS, _ROWS
from agentrl.reporting.health.monitor import Health
from agentrl.sandboxes.e2b.kind import E2B
from agentrl.telemetry.jsonl import JsonlTracker, read_metrics
from agentrl.telemetry.metrics import GROUPS, METRICS, find_metric
from agentrl.tools.mcp.connections import McpConnections
from agentrl.tools.toolbox import Toolbox
from agentrl.viewer.app import STATIC
from agentrl.viewer.curves import overview

ROOT = Path(__file__).parents[2]
PREFIXES = f"({'|'.join(sorted({metric.name.partition('/')[0] for metric in METRICS if '/' in metric.name}))})"
UNITS = {"", "share", "score", "nats", "tokens", "turns", "calls", "rollouts", "groups", "versions", "tasks", "pairs"}
UNITS |= {"rows", "s", "bytes", "tokens/s", "sandboxes", "USD"}
NO_METRICS = {"tool_calls/ok", "val/generations", "val/generation_", "staleness/tokens_lag_"}
"""A number computed by the report, sample names shown by trackers, and a name prefix."""


def test_each_metric_is_declared_once_with_a_unit_and_a_sentence():
    assert [name for name, count in Counter(metric.name for metric in METRICS).items() if count > 1] == []
    assert {metric.unit for metric in METRICS} <= UNITS
    assert [each.name for each in METRICS if len(each.meaning.split()) < 2 or each.meaning.endswith(".")] == []
    assert [each.name for each in METRICS if find_metric(each.name) not in (each, None) and "<" not in each.name] == []


@pytest.mark.parametrize(
    "name",
    [
        *(f"timing_s/{part}" for part in ("gpu_handover", "kl_controller", "critic", "learn", "reference_sync")),
        *("timing_s/reward_model", "rollout/excluded/rejected_by_correction", "staleness/3"),
        *("reward/my_part", "actor/my_number", "val/reward/my_part", "success/my_data", "tool/my_tool/timeout"),
    ],
)
def test_declared_metric_names_are_found(name):
    assert find_metric(name)


@pytest.mark.parametrize("name", ["speed", "val/speed", "timing_s/lern", "staleness/men", "rollout/excluded/Two Words"])
def test_undeclared_metric_names_are_not_found(name):
    assert find_metric(name) is None


def test_the_most_specific_declaration_describes_a_metric():
    assert find_metric("tool/search/p50_s").unit == "s"
    assert find_metric("tool/search/ok").unit == "calls"
    assert find_metric("val/tool/search/calls").name == "val/tool/search/calls"
    assert find_metric("val/num_tasks").unit == "tasks"


def test_every_metric_that_the_code_names_is_declared():
    text = "\n".join(path.read_text() for path in (ROOT / "agentrl").rglob("*.py"))
    named = {name for name, _ in re.findall(rf'"({PREFIXES}/[a-z0-9_/]*[a-z0-9_])"', text)}
    assert len(named) > 60
    assert sorted(name for name in named - NO_METRICS if find_metric(name) is None) == []


def test_metrics_of_recorded_runs_are_declared():
    names = {name for row in read_metrics(ROOT / "tests/reporting/recorded_run.jsonl") for name in row}
    assert sorted(name for name in names if find_metric(name) is None) == []


@pytest.mark.own_metrics
def test_an_undeclared_metric_is_logged_unchanged_and_noticed_in_tests(tmp_path, declared_metrics):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log(1, {"my/speed": 2.0, "success": 1.0})
    tracker.close()
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == [{"step": 1, "my/speed": 2.0, "success": 1.0}]
    assert declared_metrics == {"my/speed"}


def test_every_place_where_a_metric_is_shown_exists():
    rows = {metric.console.title for metric in METRICS if metric.console}
    assert rows == {*_HISTORY_ROWS, *_ROWS}
    assert {metric.report.chart for metric in METRICS if metric.report} == {chart.title for chart in CHARTS}
    assert overview()["metrics"][:3] == ["reward/mean", "success", "val/success"]
    places = [metric.viewer for metric in METRICS if metric.viewer is not None]
    assert sorted(places) == list(range(1, len(places) + 1))
    assert all(re.match(PREFIXES, f"{group}/") or group == "success" for group in GROUPS)


def test_the_page_of_the_viewer_has_no_list_of_metrics():
    text = "\n".join(path.read_text() for path in STATIC.glob("*.js"))
    assert sorted({name for name in re.findall(r"[\"']([a-z_]+/[a-z_/]*[a-z_])[\"']", text) if find_metric(name)}) == []


@pytest.mark.parametrize("metric", [each for each in METRICS if each.healthy], ids=lambda each: each.name)
def test_a_value_outside_the_healthy_range_causes_a_warning(metric):
    inside = metric.lowest if math.isinf(metric.highest) else metric.highest
    outside = inside - 0.2 if math.isinf(metric.highest) else inside + 0.2
    context = {"engine/later_prompt_tokens": 1e6, "rollouts/num_dropped": 10}
    good, bad = Health(), Health()
    assert [text for _ in range(12) for text in bad.check({**context, metric.name: outside})]
    nearly = inside + (1e-6 if math.isinf(metric.highest) else 0.0)
    assert [text for _ in range(12) for text in good.check({**context, metric.name: nearly})] == []


def test_metrics_page_is_up_to_date():
    made = runpy.run_path(str(ROOT / "docs/make_reference.py"))["metrics_page"]()
    assert made == (ROOT / "docs/metrics.md").read_text(), "run `make reference`"
    assert [metric.name for metric in METRICS[1:] if f"| `{metric.name}` |" not in made] == []


@pytest.mark.slow
def test_every_metric_of_a_run_is_declared(task_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = [f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "rollout.n=2"]
    options += [f"data.val_files={task_folder}/val.jsonl", "data.val_max_samples=8", "data.train_batch_size=4"]
    options += [f"trainer.default_local_dir={tmp_path}", "trainer.total_training_steps=2", "trainer.max_staleness=1"]
    assert main(["train", "+experiment=calculator", *options, "actor.use_kl_loss=true", "trainer.logger=[jsonl]"]) == 0
    names = {name for line in (tmp_path / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)}
    assert sorted(name for name in names if find_metric(name) is None) == []


def test_numbers_of_what_tools_share_are_declared():
    names = {*E2B.pool({}).metrics(), *McpConnections(()).metrics(), *Toolbox().metrics()}
    assert sorted(name for name in names if find_metric(f"tools/{name}") is None) == []
