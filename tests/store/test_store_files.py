"""Store files: complete at any moment; invalid files are refused in one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from older_files import as_version_4, as_version_5, as_version_6, as_version_7
from stored_runs import group, rollout

from agentrl.errors import DataError
from agentrl.store import TrajectoryStore
from agentrl.store import trajectories as store_module
from agentrl.types.excluded import Excluded
from agentrl.types.operation import Operation, OperationKind


def a_step(uid: str = "u") -> list:
    return [group(uid, rollout(0), rollout(1, reward=1.0))]


def test_steps_are_one_file_each_and_later_ones_are_forgotten_on_resume(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "train")
    assert store.steps == []
    store.truncate(0)
    for step in (10, 2, 1_000_000, 3):
        assert store.write(step, a_step()).name == f"step-{step:06d}.parquet"
    (tmp_path / "train/.step-000004.parquet.partial").write_bytes(b"PAR1")
    (tmp_path / "train/step-9.parquet").touch()  # not a file name of the store
    assert store.steps == [2, 3, 10, 1_000_000]
    store.truncate(3)
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == [
        "step-000002.parquet",
        "step-000003.parquet",
        "step-9.parquet",
    ]
    store.write(3, a_step("again"))
    assert [group.uid for group in store.groups(3)] == ["again"]


WRITER = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
sys.path.insert(0, {tests!r})
from stored_runs import group, rollout
from agentrl.store import TrajectoryStore

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def die_after(function, calls=1):
    def wrapped(*arguments, **options):
        nonlocal calls
        result = function(*arguments, **options)
        calls -= 1
        if not calls:
            die()
        return result
    return wrapped

store = TrajectoryStore(Path({folder!r}))
store.write(1, [group("old", rollout(0))])
store.write(2, [group("old", rollout(0))])
{phase}
store.write(2, [group("new", rollout(0))])
"""


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("phase", "uid"),
    [
        ("pq.ParquetWriter.write_batch = die", "old"),  # the file is open and empty
        ("pq.ParquetWriter.write_batch = die_after(pq.ParquetWriter.write_batch)", "old"),  # rows without a footer
        ("pq.ParquetWriter.close = die_after(pq.ParquetWriter.close)", "old"),  # complete, perhaps not on the disk
        ("os.fsync = die_after(os.fsync)", "old"),  # on the disk, under a temporary name
        ("os.replace = die_after(os.replace)", "new"),  # renamed
        ("os.fsync = die_after(os.fsync, 2)", "new"),  # its new name on the disk
    ],
)
def test_killed_writer_leaves_only_complete_files(phase: str, uid: str, tmp_path: Path) -> None:
    code = WRITER.format(tests=str(Path(__file__).parent), folder=str(tmp_path), phase=phase)
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -signal.SIGKILL
    store = TrajectoryStore(tmp_path)
    assert store.steps == [1, 2]
    assert [group.uid for step in (1, 2) for group in store.groups(step)] == ["old", uid]
    store.truncate(2)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_file_before_it(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TrajectoryStore(tmp_path)
    store.write(1, a_step("old"))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(store_module, "write_batches", fail)
    with pytest.raises(type(error)):
        store.write(1, a_step("new"))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001.parquet"]
    assert store.groups(1)[0].uid == "old"


def test_provenance_and_version_are_kept_with_each_file(tmp_path: Path) -> None:
    provenance = {"tokenizer": "sha256:ab", "chat template": "ü\ud800"}
    store = TrajectoryStore(tmp_path, provenance=provenance)
    path = store.write(1, a_step())
    assert store.provenance(1) == provenance
    assert pq.read_schema(path).metadata[b"agentrl.schema_version"] == b"8"
    assert pq.read_schema(path).metadata[b"agentrl.provenance.tokenizer"] == b"sha256:ab"


def test_any_reader_of_parquet_finds_the_values_under_their_names(tmp_path: Path) -> None:
    first, second = pq.read_table(TrajectoryStore(tmp_path).write(1, a_step()), partitioning=None).to_pylist()
    assert (first["uid"], second["rollout"], second["reward"]) == ("u", 1, 1.0)
    assert second["rewards"] == [{"name": "score", "value": 1.0}]
    assert second["seed"] == 2**64 - 2
    (kept,) = second["trajectories"]
    assert kept["messages"] == '[{"role":"user","content":"?"}]'
    assert [segment["token_ids"] for segment in kept["segments"]] == [[1, 2], [3, 5]]
    assert kept["segments"][1]["policy_versions"] == [{"version": 0, "num_tokens": 2}]


def test_the_datasets_library_opens_saved_rollouts(tmp_path: Path) -> None:
    path = TrajectoryStore(tmp_path / "run").write(1, a_step())
    rows = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["uid"] for row in rows] == ["u", "u"]
    assert rows[1]["rewards"] == [{"name": "score", "value": 1.0}]
    assert [part["token_ids"] for part in rows[1]["trajectories"][0]["segments"]] == [[1, 2], [3, 5]]


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    return lambda path: pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def version_9(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({"agentrl.schema_version": "9"})


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "not a readable file of trajectories"),
        (lambda path: path.write_bytes(b""), "not a readable file of trajectories"),
        (flipped, "not a readable file of trajectories"),
        (lambda path: pq.write_table(pa.table({"uid": ["u"]}), path), "has no 'agentrl.schema_version'"),
        (rewritten(version_9), "schema version 9 is not supported; supported versions: 2, 3, 4, 5, 6, 7, 8"),
        (rewritten(lambda table: table.drop_columns(["seed"])), "no column 'seed'"),
        (rewritten(lambda table: table.set_column(0, "step", table["step"].cast("int32"))), "column 'step' is int32"),
        (
            rewritten(lambda table: table.set_column(table.column_names.index("stop"), "stop", pa.array(["?"] * 2))),
            r"'\?' is not a valid Stop",
        ),
    ],
)
def test_unreadable_file_is_named_in_one_line(damage: Callable[[Path], object], complaint: str, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    path = store.write(1, a_step())
    damage(path)
    for read in (lambda: store.groups(1), lambda: list(store.scan()), lambda: store.rollout(1, "u", 0)):
        with pytest.raises(DataError, match=complaint) as raised:
            read()
        assert str(raised.value).startswith(f"{path}: ")
        assert "\n" not in str(raised.value)


def test_the_reason_of_a_rollout_is_a_column(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    groups = a_step()
    groups[0].rollouts[1].infra_failed = True
    path = store.write(1, groups, excluded={"u/0": Excluded.STALE})
    assert [each.excluded for each in store.scan()] == [Excluded.STALE, Excluded.INFRA_ERROR]
    assert [each.excluded for each in store.scan(columns=["excluded"])] == [Excluded.STALE, Excluded.INFRA_ERROR]
    before = list(store.scan(columns=["rewards"]))
    as_version_4(path)
    assert [each.excluded for each in store.scan(columns=["excluded"])] == [None, None]
    assert [each.rollout for each in store.scan(columns=["rewards"])] == [each.rollout for each in before]


def test_version_5_file_is_read_without_operations(tmp_path: Path) -> None:
    store, groups = TrajectoryStore(tmp_path), a_step()
    groups[0].rollouts[1].operations = [Operation(OperationKind.SAY, 0, 3, 2, 1, 4, 1, 0, "{}")]
    path = store.write(1, groups)
    (column,) = [list(store.scan(columns=["operations"]))]
    assert [each.rollout.operations for each in column] == [[], groups[0].rollouts[1].operations]
    as_version_5(path)
    assert [each.rollout.operations for each in store.scan()] == [[], []]
    assert [each.rollout.rewards for each in store.scan()] == [each.rewards for each in groups[0].rollouts]


def test_version_7_file_is_read_without_facts(tmp_path: Path) -> None:
    store, groups = TrajectoryStore(tmp_path), a_step()
    groups[0].rollouts[1].facts = {"harness_exit_code": 3, "harness_output": "end\ud800", "harness_requests": None}
    path = store.write(1, groups)
    assert [each.rollout.facts for each in store.scan()] == [{}, groups[0].rollouts[1].facts]
    as_version_7(path)
    assert [each.rollout.facts for each in store.scan()] == [{}, {}]


def test_version_6_file_is_read_with_weights_of_1(tmp_path: Path) -> None:
    store, groups = TrajectoryStore(tmp_path), a_step()
    groups[0].rollouts[1].trajectories[0].weight = 0.25
    path = store.write(1, groups)
    assert [each.rollout.trajectories[0].weight for each in store.scan()] == [1.0, 0.25]
    as_version_6(path)
    assert [each.rollout.trajectories[0].weight for each in store.scan()] == [1.0, 1.0]
