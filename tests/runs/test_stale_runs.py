"""Complete runs of a tiny model under bounded staleness, with slow tools that end in any order; checks every group."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from babbling import babble_is_known, train  # noqa: F401  # the first a fixture

from agentrl.audit.auditor import Auditor
from agentrl.replay.base import Options, Replay
from agentrl.replay.saved_run import open_saved
from agentrl.replay.why_mode import why
from agentrl.run_folder.checkpoints import newest, read_state
from agentrl.store import TrajectoryStore
from agentrl.trainer.sources.streaming import StreamingSource
from agentrl.utils.seeds import derive_seed

STEPS, GROUPS_PER_STEP, ROWS = 6, 4, 12


@pytest.fixture
def watched(monkeypatch):
    """(version, [staleness], admitted) whenever a step takes its groups."""
    seen = []
    real = StreamingSource.take

    async def take(self, policy_version):
        groups = await real(self, policy_version)
        seen.append((policy_version, [group.staleness(policy_version) for group in groups], self.position))
        return groups

    monkeypatch.setattr(StreamingSource, "take", take)
    return seen


def drawn(uid: str) -> tuple[int, int, int]:
    """(epoch, row, draw) of a uid."""
    places = ((epoch, row, draw) for epoch in range(9) for row in range(ROWS) for draw in range(3))
    return next(place for place in places if f"{derive_seed(0, 'uid', *place):016x}" == uid)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("staleness", "over_sampling"),
    [
        pytest.param(2, 0.25, marks=pytest.mark.slow),
        pytest.param(0, 0.5, marks=pytest.mark.slow),
        pytest.param(1, 0.0, marks=pytest.mark.slow),
        pytest.param(4, 0.0, marks=pytest.mark.slow),
    ],
)
def test_no_group_is_older_than_the_bound(task_folder, tmp_path, watched, staleness, over_sampling):
    run = tmp_path / "run"
    options = {"max_staleness": staleness, "over_sampling": over_sampling, "total_training_steps": STEPS}
    train(task_folder, tmp_path, run, staleness, False, max_concurrent_rollouts=64, **options)
    assert [version for version, _, _ in watched] == list(range(STEPS))
    assert all(len(found) == GROUPS_PER_STEP and max(found) <= staleness for _, found, _ in watched)
    assert any(each for _, found, _ in watched for each in found) == (staleness > 0)  # staleness above 0 does occur
    for version, _, admitted in watched:
        assert admitted <= (version + staleness + 1 + over_sampling) * GROUPS_PER_STEP
    assert broken(run) == []
    assert len(each_task_once(run)) == STEPS * GROUPS_PER_STEP
    *_, last = logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reasons = {"stale"} if staleness else {"over_sampled"}
    check_dropped(run, logged, reasons | {"over_sampled"} if over_sampling else reasons)
    assert {"staleness/mean", "staleness/requeued", "timing_s/wait_rollouts"} <= last.keys()
    said = json.loads((run / "environment.json").read_text())["reproducible"]
    given = {"max_staleness": staleness, "over_sampling": over_sampling}
    assert said["settings"] == [f"trainer.{name}={value}" for name, value in given.items() if value]


def check_dropped(run, logged, reasons):
    """Every requeued group is saved with its reason and counted, and no step trained on it."""
    dropped = list(TrajectoryStore(run / "trajectories/excluded").scan())
    assert {each.excluded for each in dropped} <= reasons
    counts = Counter(each.step for each in dropped)
    counted = [sum(row.get(f"rollout/excluded/{reason}", 0) for reason in reasons) for row in logged]
    assert counted == [counts[row["step"]] for row in logged]
    trained = {each.task.uid for each in TrajectoryStore(run / "trajectories/train").scan()}
    assert trained.isdisjoint(each.task.uid for each in dropped)
    told = why(Replay(open_saved(str(run)), Options())).values["excluded"]
    assert [each["step"] for each in told if each["reason"] in reasons] == sorted(counts.elements())


def broken(run) -> list[str]:
    """Problems that the independent audit reports about the sampling versions; it cannot parse `babble`."""
    hermes = {"rollout": {"multi_turn": {"format": "hermes"}}}
    ledger = Auditor(folder=run, overrides=hermes).audit(sorted((run / "trajectories").glob("[tv]*/*.parquet")))
    findings = [ledger.findings[name] for name in ("policy versions", "groups", "identity", "siblings")]
    assert all(finding.num_checked for finding in findings)
    return [str(problem) for finding in findings for problem in finding.problems]


def each_task_once(run) -> list[tuple[int, int, int]]:
    """The draws that were trained on. Together with the pending draws they contain each drawn task once."""
    stored = TrajectoryStore(run / "trajectories/train").scan()
    trained = [drawn(each.task.uid) for each in stored if each.number == 0]
    state = read_state(newest(run))
    everything = Counter(place[:2] for place in (*trained, *state.pending))
    assert everything.total() == state.position
    assert set(everything.values()) == {1}
    return trained


def killed(task_folder, out, scenarios):
    command = [sys.executable, str(Path(__file__).parent / "killed_runs.py"), str(task_folder), str(out), *scenarios]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1500)
    for result in map(json.loads, done.stdout.splitlines()):
        folder = Path(result["folder"])
        *lives, last = result["lives"]
        assert last["status"] == 0, folder.with_suffix(".log").read_text()[-2000:]
        assert all(life["status"] == -signal.SIGKILL for life in lives)
        assert len(each_task_once(folder)) == 7 * 2
        assert broken(folder) == []
        yield lives


@pytest.mark.slow
def test_killed_run_loses_and_duplicates_no_task(task_folder, tmp_path):
    ((one, other),) = killed(task_folder, tmp_path, ["stale:update=8,publish=4"])
    assert (one["hit"], other["hit"]) == ("update", "publish")


@pytest.mark.nightly
def test_kills_in_every_phase_lose_and_duplicate_no_task(task_folder, tmp_path):
    named = ["rollout=40,rollout=25,tool=30", "optimizer=9,validation=3,store=5", "checkpoint=2,run_state=1"]
    randomly = [f"random={seed}" for seed in range(2)]
    lives = list(killed(task_folder, tmp_path, [f"stale:{kills}" for kills in (*named, *randomly)]))
    assert sum(life["hit"] is not None for each in lives for life in each) >= 10
