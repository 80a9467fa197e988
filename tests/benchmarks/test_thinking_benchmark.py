from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_both_settings_train_the_same_turns_and_strip_repeats_prompts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    thinking = importlib.import_module("thinking")
    kept, stripped = (asyncio.run(thinking.rolled_out(each, 3, 5, 1))[0] for each in ("keep", "strip"))
    one, other = thinking.figures(kept), thinking.figures(stripped)
    assert (one.num_trajectories, other.num_trajectories) == (8, 24)
    assert one.num_trained == other.num_trained > 0
    assert (one.num_repeated, one.longest > other.longest) == (0, True)
    assert 0.5 < thinking.share_elsewhere(kept, stripped) < 0.75
    turns = [[sample.loss_mask for sample in thinking.samples(groups)] for groups in (kept, stripped)]
    assert sum(map(sum, turns[0])) == sum(map(sum, turns[1])) == one.num_trained
