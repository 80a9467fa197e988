"""Our advantages equal verl's and TRL's, or the difference has a known reason."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the module by path: it belongs to no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("agreement_advantages")


def relative(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / max(*map(abs, theirs), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["verl", "trl"])
def test_advantages_are_the_peers(peer: str, agreement: Any, run_peer: Callable[..., Any], tmp_path: Path) -> None:
    same = [case for case in agreement.cases() if case.peer == peer]
    other = [difference for difference in agreement.differences() if difference.case.peer == peer]
    questions = tmp_path / "questions.json"
    asked = [case.asked for case in (*same, *(difference.case for difference in other))]
    questions.write_text(json.dumps({"batches": agreement.BATCHES, "asked": asked}))
    answers = run_peer(peer, BENCHMARKS / f"peers/{peer}_advantages.py", questions)
    for case, theirs in zip(same, answers[: len(same)], strict=True):
        assert relative(case.ours(), theirs) < 1e-5, case
    for difference, theirs in zip(other, answers[len(same) :], strict=True):
        assert relative(difference.case.ours(), theirs) > 1e-5, difference
        if difference.reason == agreement.EPSILON:
            assert relative(difference.case.ours(), theirs) < 1e-3, difference
        if difference.reason == agreement.ALPHA:
            rewards = agreement.BATCHES[difference.case.asked["batch"]]["components"]["exact"]
            right = [number * sum(map(bool, rewards)) / len(rewards) for number in theirs]
            assert relative(difference.case.ours(), right) < 1e-5


def test_every_verl_estimator_is_compared_with_tool_spans(agreement: Any) -> None:
    rows = {case.row for case in agreement.cases() if case.peer == "verl"}
    assert len(rows) == 11
    trained = agreement.BATCHES[0]["mask"]
    assert any(
        row[first:last].count(False) for row in trained for first, last in [(row.index(True), -1 if row[-1] else None)]
    )
