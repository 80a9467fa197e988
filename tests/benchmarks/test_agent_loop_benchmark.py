from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_agent_loop_benchmark_smallest_case_runs(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    agent_loop = importlib.import_module("agent_loop")
    monkeypatch.setattr("sys.argv", ["agent_loop.py", "--rollouts", "1", "--turns", "3"])
    agent_loop.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.split()[:2] == ["1", "3"]]
    assert len(lines) == 2  # two lines: as in training, and in place
    assert all(float(figure) > 0 for line in lines for figure in line.split()[-3:])
