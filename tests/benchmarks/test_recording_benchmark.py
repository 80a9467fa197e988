from __future__ import annotations

import importlib
from pathlib import Path

from agentrl.agent_loops.conversation import Conversation

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_recording_benchmark_smallest_case_runs(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    recording = importlib.import_module("recording")
    monkeypatch.setattr(recording, "NUM_RECORDS", 10)
    monkeypatch.setattr("sys.argv", ["recording.py", "--rollouts", "1", "--turns", "3", "--repeats", "1"])
    before = Conversation._operation
    recording.main()
    assert Conversation._operation is before
    turn, record, file = capsys.readouterr().out.splitlines()
    assert turn.startswith("a turn: ")
    assert float(record.split()[2]) > 0
    assert "bytes per turn" in file
