"""Processes of a run: started, watched and restarted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentrl.cluster import launch
from agentrl.cluster.launch import Silence

LAUNCH = """
import sys
from agentrl.cluster.launch import launch
sys.exit(launch([sys.executable, "-c", sys.argv[1]], 2, {}))
"""
RANK = "import os, signal, sys, time; rank, attempt = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']\n"
WAIT = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); time.sleep(60)"


def launched(code: str, max_restarts: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LAUNCH.format(max_restarts), RANK + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


@pytest.mark.slow
def test_killed_rank_is_named_and_other_ranks_end():
    done = launched(f"os.kill(os.getpid(), signal.SIGKILL) if rank == '1' else None\n{WAIT}")
    assert done.returncode == 1
    assert "agentrl: error: rank 1 (process " in done.stderr
    assert "was killed by SIGKILL" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_all_ranks_start_again_after_a_failure():
    done = launched(
        "os.write(1, f'rank {rank}, attempt {attempt}\\n'.encode()); sys.exit(rank == '1' and attempt == '0')", 1
    )
    assert done.returncode == 0
    assert {f"rank {rank}, attempt 1" for rank in (0, 1)} <= {*done.stdout.splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "status"), [("pass", 0), ("sys.exit(2 if rank == '0' else 0)", 2)])
def test_exit_status_is_that_of_rank_0(code, status):
    assert launched(code).returncode == status


def test_silence_does_not_count_the_time_of_a_suspended_machine(tmp_path, monkeypatch):
    sign, silence, times = tmp_path / "sign", Silence(), iter([1.0, 1.5, 2.0, 3600.0, 3600.5, 3601.0])
    monkeypatch.setattr(launch.time, "monotonic", lambda: next(times))
    assert silence.seconds(sign) == 0.0
    sign.touch()
    assert [silence.seconds(sign) for _ in range(5)] == [0.0, 0.5, 1.0, 2.0, 2.5]
    os.utime(sign, (1.0, 1.0))
    assert silence.seconds(sign) == 0.0
