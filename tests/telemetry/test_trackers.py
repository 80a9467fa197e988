"""Trackers: JSON Lines and TensorBoard, also after a resume."""

from __future__ import annotations

import json
import math

import pytest

from agentrl.errors import UnknownNameError
from agentrl.telemetry.base import TrackedRun, trackers
from agentrl.telemetry.jsonl import JsonlTracker, read_metrics


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.own_metrics
def test_one_json_object_per_step_is_readable_during_the_run(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.log(1, {"reward/mean": 0.5, "bad": math.nan, "worse": math.inf})
    assert rows(path) == [{"step": 1, "reward/mean": 0.5, "bad": None, "worse": None}]
    tracker.log(2, {"reward/mean": 0.6})
    tracker.close()
    assert [row["step"] for row in rows(path)] == [1, 2]


@pytest.mark.own_metrics
@pytest.mark.parametrize(("resumed_at", "kept"), [(None, [0, 1, 2, 3]), (2, [0, 1, 2]), (-1, [])])
def test_resumed_run_starts_at_the_next_step(tmp_path, resumed_at, kept):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "x": None}) + "\n" for step in range(4)))
    tracker = JsonlTracker(path, resumed_at)
    tracker.log(9, {"x": 1.0})
    tracker.close()
    assert [row["step"] for row in rows(path)] == [*kept, 9]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_partial_line_ends_reading_and_is_removed_on_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "rew')
    assert [row["step"] for row in read_metrics(path)] == [1]
    JsonlTracker(path, resumed_at=5).close()
    assert rows(path) == [{"step": 1}]


def test_tensorboard_reads_back_what_was_logged_and_hides_what_was_redone(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    open_tracker = trackers.get("tensorboard")
    for resumed_at, steps in ((-1, (1, 2, 3)), (1, (2,))):
        tracker = open_tracker(TrackedRun(tmp_path, resumed_at=resumed_at))
        for step in steps:
            tracker.log(step, {"reward/mean": step / 10 + max(resumed_at, 0)})
        tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("reward/mean")] == [(1, 0.1), (2, 1.2)]


@pytest.mark.own_metrics
def test_trackers_are_loaded_by_name(tmp_path):
    tracker = trackers.get("jsonl")(TrackedRun(tmp_path))
    tracker.log(1, {"x": 1.0})
    tracker.close()
    assert rows(tmp_path / "metrics.jsonl") == [{"step": 1, "x": 1.0}]
    with pytest.raises(UnknownNameError, match="did you mean 'jsonl'"):
        trackers.get("json")
