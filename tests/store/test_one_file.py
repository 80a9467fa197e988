"""A single trajectory file, under any name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_runs import group, rollout

from agentrl.errors import DataError
from agentrl.store import TrajectoryStore


def a_file(folder: Path, *steps: int) -> Path:
    """The rollouts of several steps, joined as other Parquet tools would do."""
    store = TrajectoryStore(folder / "train", provenance={"made": "here"})
    tables = [
        pq.read_table(store.write(step, [group(f"{step}", rollout(step), rollout(0))]), partitioning=None)
        for step in steps
    ]
    path = folder / "picked.parquet"
    pq.write_table(pa.concat_tables(tables), path)
    return path


def test_steps_are_read_from_the_rows(tmp_path: Path) -> None:
    store = TrajectoryStore.of_file(a_file(tmp_path, 7, 3))
    assert store.steps == [3, 7]
    assert [[group.uid for group in store.groups(step)] for step in (3, 7)] == [["3"], ["7"]]
    assert [(stored.step, stored.number) for stored in store.scan(steps=[7], columns=["rewards"])] == [(7, 0), (7, 1)]
    assert [stored.step for stored in store.scan()] == [3, 3, 7, 7]
    assert [stored.step for stored in store.scan(uid="7", min_reward=0.0)] == [7, 7]
    assert store.rollout(7, "7", 0).rollout.trajectories[0].token_ids == [1, 2, 3, 11]
    assert store.provenance(3) == {"made": "here"}
    with pytest.raises(DataError, match=r"picked.parquet: no trajectories of step 4; saved steps: 3 to 7"):
        store.groups(4)
    with pytest.raises(DataError, match="no rollout 0 of group '7'"):
        store.rollout(3, "7", 0)


def test_import_does_not_change_the_file(tmp_path: Path) -> None:
    path = a_file(tmp_path, 1)
    store = TrajectoryStore.of_file(path)
    for change in (lambda: store.write(1, []), lambda: store.truncate(0)):
        with pytest.raises(ValueError, match="read-only"):
            change()
    assert path.exists()


def test_files_that_hold_no_rollouts_are_refused_by_name(tmp_path: Path) -> None:
    whole = a_file(tmp_path, 1)
    empty, cut, foreign = (tmp_path / f"{name}.parquet" for name in ("empty", "cut", "foreign"))
    pq.write_table(pq.read_table(whole, partitioning=None).slice(0, 0), empty)
    cut.write_bytes(whole.read_bytes()[:-9])
    pq.write_table(pa.table({"uid": ["u"]}), foreign)
    complaints = {
        empty: "no rollouts in the file",
        cut: "not a readable file",
        foreign: "has no 'agentrl.schema_version'",
    }
    for path, complaint in complaints.items():
        with pytest.raises(DataError, match=complaint) as raised:
            TrajectoryStore.of_file(path)
        assert str(raised.value).startswith(f"{path}: ")
