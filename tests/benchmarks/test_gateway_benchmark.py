from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_the_smallest_case_of_the_gateway_benchmark_runs(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    gateway = importlib.import_module("gateway")
    monkeypatch.setattr("sys.argv", ["gateway.py", "--requests", "4", "--sessions", "2", "--kilobytes", "1", "20"])
    gateway.main()
    _, small, large, memory = capsys.readouterr().out.splitlines()
    assert [float(line.split()[1]) for line in (small, large)] == [2, 2]
    assert all(float(figure) > 0 for line in (small, large) for figure in line.split()[2:7])
    assert float(memory.split()[-2]) < 10


@pytest.mark.parametrize("kilobytes", [1, 20, 86])
def test_bodies_have_the_size_that_is_named(kilobytes, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    body = importlib.import_module("gateway").body_of(1000 * kilobytes)
    assert len(body) == 1000 * kilobytes
