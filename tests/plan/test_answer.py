from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from agentrl.plan.answer import TimeAnswer, as_json, table, verdict
from agentrl.plan.split.machine import Span
from agentrl.plan.split.simulate import Split
from agentrl.plan.time.step import StepTime
from agentrl.plan.timeline import HEIGHT, WIDTH, timeline

PHASES = StepTime(rollout_s=30, score_s=0, learn_s=20, publish_s=1, tokens=1000, sampled=800)


def answer(staleness: dict[int, float], *, hourly: float | None = 360.0) -> TimeAnswer:
    split = Split(
        step_s=50,
        num_steps=4,
        trainer_idle=0.1,
        engine_idle=0.3,
        learn_s=20,
        score_s=0,
        staleness=staleness,
        requeued=0,
        partial=0,
        wasted=0,
        tokens_per_step=1000,
        rollout_s=12,
        spans=SPANS,
    )
    return TimeAnswer(PHASES, split, hourly, "8xH100")


SPANS = [
    Span("rollouts", "a", 0, 30),
    Span("rollouts", "b", 10, 20),
    Span("trainer", "learn", 30, 50),
    Span("trainer", "publish", 50, 51),
    Span("trainer", "learn", 90, 110),
]


def test_the_price_is_that_of_all_devices_for_a_step():
    assert answer({0: 1.0}).price == pytest.approx(5.0)
    assert answer({0: 1.0}, hourly=None).price is None


def test_the_bottleneck_is_the_longest_phase_or_the_busier_side():
    assert answer({0: 1.0}).bottleneck == "rollout"
    assert answer({0: 0.5, 1: 0.5}).bottleneck == "training"


def test_the_verdict_is_one_line_with_seconds_and_price():
    line = verdict(answer({0: 1.0}))
    assert "\n" not in line
    assert all(part in line for part in ("50 s", "$5", "8xH100", "rollout"))


def test_the_table_leaves_out_phases_without_time():
    lines = list(table(answer({0: 1.0})))
    assert not any(line.startswith("scores") for line in lines)
    assert any("50 s" in line for line in lines)


def test_json_has_all_numbers_and_no_timeline():
    found = json.loads(json.dumps(as_json(answer({0: 0.5, 2: 0.5}))))
    assert found["simulated"]["staleness"] == {"0": 0.5, "2": 0.5}
    assert found["phases"]["learn_s"] == 20
    assert "spans" not in found["simulated"]


def test_the_picture_has_a_bar_for_each_work_of_the_trainer_that_has_begun():
    drawn = ElementTree.fromstring(timeline(SPANS, 100))
    bars = [each for each in drawn.iter("{http://www.w3.org/2000/svg}rect") if each.get("y") != "8"]
    assert [each.get("class") for each in bars] == ["c0", "c1", "c0"]
    for bar in bars:
        assert float(bar.get("x", 0)) + float(bar.get("width", 0)) <= WIDTH
    assert drawn.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"


def test_the_picture_shows_how_many_rollouts_run():
    assert "0 to 2" in timeline(SPANS, 100)


def test_a_picture_needs_time():
    with pytest.raises(ValueError, match="0 s"):
        timeline(SPANS, 0)
