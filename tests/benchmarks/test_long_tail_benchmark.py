from __future__ import annotations

import asyncio
import importlib
import random
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/tail"))
    monkeypatch.syspath_prepend(str(ROOT / "examples/calculator"))
    monkeypatch.chdir(ROOT)
    return importlib.import_module


def test_tool_times_have_the_stated_heavy_tail(module):
    slow_task = module("slow_task")
    rng = random.Random(0)
    drawn = sorted(slow_task.pareto(rng, 0.05, 5.0) for _ in range(20_000))
    assert statistics.median(drawn) == pytest.approx(0.05, rel=0.05)
    assert drawn[-1] == 5.0
    share = sum(each > 0.5 for each in drawn) / len(drawn)
    assert share == pytest.approx(0.5 * 10**-1.2, rel=0.1)  # ten times the median


def test_restarted_rollouts_have_the_same_seeds(module):
    tail = module("slow_task").Tail()
    tail.group_size = 2

    def met(row: int, name: str) -> list[float]:
        return [tail.begin(row, name).random(), tail.turn(name).random(), tail.turn(name).random()]

    first, second, again, other = met(7, "a"), met(7, "b"), met(7, "c"), met(8, "d")
    assert again == first  # a repeated call for the same task
    assert len({*first, *second, *other}) == 9


def test_benchmark_bound_is_the_busiest_component(module, tmp_path):
    long_tail = module("long_tail")
    steps = [{"rollout_s/mean": 0.5, "rollouts/failed": 0.0}] * 10  # 128 x 0.5 s of rollouts per step

    def result(wall_s: float, **seconds: float) -> object:
        return long_tail.Result([0.0, wall_s], seconds, steps, tmp_path)

    on_policy = result(20.0, learn=4.0, publish=1.0, take=15.0, engine=10.0)
    late = result(10.0, learn=6.0, publish=1.0, take=3.0, engine=8.0)
    unhurried = long_tail.Result([0.0, 1.0], {"engine": 4.0}, steps[:2], tmp_path)  # two of five steps: 0.4 s per step
    runs = {"staleness 0": on_policy, "staleness 1": late, "staleness 4": late, long_tail.UNHURRIED: unhurried}
    first, *sides = long_tail.table(runs)
    assert first == "L 0.5 s a step, E 0.4 s a step"
    assert "steps/s 0.5, bound 2, bound on one processor 1.11, trainer idle 0.75, engine idle 0.5" in sides[0]
    assert "steps/s 1, bound 2, bound on one processor 1.11, trainer idle 0.3, engine idle 0.2" in sides[1]
    assert long_tail.ratios([runs])[1] == "staleness 1: 2.00 times staleness 0 (2.00 to 2.00)"


@pytest.mark.slow
def test_slow_run_benchmark_runs(module, task_folder, tmp_path):
    slow_run = module("slow_run")
    overrides = (
        *(f"model.path={task_folder}/model", f"data.train_files=[{task_folder}/train.jsonl]"),
        *("data.train_batch_size=2", "rollout.n=2", "trainer.total_training_steps=2", "trainer.max_staleness=1"),
        f"trainer.default_local_dir={tmp_path}",
    )
    seen = asyncio.run(slow_run.run(overrides))
    assert len(seen["ends"]) == 3
    assert 0 < seen["engine"] <= seen["ends"][-1] + 1
    assert seen["learn"] > 0
    assert seen["take"] > 0


def test_cached_tokens_are_split_into_repeated_and_new(module):
    sglang_cache = module("sglang_cache")
    turns = [sglang_cache.Turn(1, 40, 0, 30), sglang_cache.Turn(2, 100, 80, 78), sglang_cache.Turn(2, 100, 80, 90)]
    first, second, later = sglang_cache.table(turns)
    assert first == "turn 1: 1 requests, 75.0% of 40 tokens cached"
    assert second == "turn 2: 2 requests, 84.0% of 200 tokens cached, 98.8% of the 160 sent before"  # 78 + 80
    assert later == "turn 2 and later: 2 requests, 84.0% of 200 tokens cached, 98.8% of the 160 sent before"
