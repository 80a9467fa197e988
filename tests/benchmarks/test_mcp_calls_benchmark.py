from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.nightly
def test_mcp_benchmark_smallest_case_runs(monkeypatch, capfd):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr("sys.argv", ["mcp_calls.py", "--calls", "2", "--at-once", "1", "--rollouts", "1"])
    importlib.import_module("mcp_calls").main()
    # not capsys: the SDK passes its error output to a process
    first, *lines = capfd.readouterr().out.splitlines()
    assert first.startswith("a process of the example server: ")
    assert [line.split()[:2] for line in lines if line.split()[1] in ("SDK", "agentrl")] == [
        ["stdio", "SDK"],
        ["stdio", "agentrl"],
        ["http", "SDK"],
        ["http", "agentrl"],
    ]
    assert sum("1 rollouts with a session each" in line for line in lines) == 2
