"""Run folders from other people: links in them are not followed, and damaged records are skipped."""

from __future__ import annotations

import errno
import fcntl
import json
import os

import pytest

from agentrl.cli.main import main
from agentrl.config import validate_config
from agentrl.errors import ConfigError
from agentrl.run_folder.files import locked, remove_leftovers, write_atomically
from agentrl.run_folder.location import opened
from agentrl.telemetry.jsonl import JsonlTracker, read_metrics


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "victim"
    file.write_text("precious")
    yield file
    assert file.read_text() == "precious"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def resume(run):
    trainer = {"default_local_dir": run, "resume_mode": "auto"}
    with opened(validate_config({"model": {"path": "m"}, "trainer": trainer})):
        raise AssertionError("not refused")


def test_lock_file_that_is_a_link_is_refused(run, victim):
    (run / ".lock").symlink_to(victim)
    with pytest.raises(ConfigError, match="it is a link"), locked(run):
        pass


def test_hard_linked_lock_file_is_refused(run, victim):
    os.link(victim, run / ".lock")
    with pytest.raises(ConfigError, match="not a lock file"), locked(run):
        pass


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "trajectories", "data", "media"])
def test_records_that_are_links_are_refused(run, victim, name):
    (run / name).symlink_to(victim)
    with pytest.raises(ConfigError, match=f"{name}' is a link"):
        resume(run)


def test_linked_rollout_folders_are_not_followed(run, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/step-000009.parquet").touch()
    (run / "trajectories").mkdir()
    (run / "trajectories/val").symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="val' is a link"):
        resume(run)
    assert (tmp_path / "theirs/step-000009.parquet").exists()


def test_writing_never_follows_a_link(run, victim):
    for name in (".config.yaml.partial", "config.yaml"):
        (run / name).symlink_to(victim)
    write_atomically(run / "config.yaml", "new")
    assert (run / "config.yaml").read_text() == "new"
    assert not (run / "config.yaml").is_symlink()


def test_metrics_are_never_written_through_a_link(run, victim):
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (run / "metrics.tmp").symlink_to(victim)
    (run / "warnings.jsonl").symlink_to(run / "nothing")
    tracker = JsonlTracker(run / "metrics.jsonl", 1)
    tracker.log(2, {"success": 1.0})
    with pytest.raises(OSError, match="symbolic"):
        tracker.log_warning(2, "text")
    tracker.close()
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2]
    assert not (run / "nothing").exists()


def test_leftovers_are_found_by_name_only(run, tmp_path):
    (tmp_path / "theirs").mkdir()
    for name in (".mine.partial", ".step-3.removed"):
        (tmp_path / "theirs" / name).touch()
    (run / "step-1").symlink_to(tmp_path / "theirs")
    for name in (".step-2.partial", ".latest.partial", ".mine.partial"):
        (run / name).touch()
    remove_leftovers(run)
    assert sorted(path.name for path in run.iterdir()) == [".mine.partial", "step-1"]
    assert len(list((tmp_path / "theirs").iterdir())) == 2


def test_export_copies_no_file_that_a_link_leads_to(run, victim, capsys):
    (run / "config.json").write_text("{}")
    (run / "model.safetensors").symlink_to(victim)
    assert main(["export", str(run), str(run.parent / "out")]) == 2
    assert not (run.parent / "out").exists()


DAMAGED = ["", "{", '{"a": 1}', '{"step": "two"}', "[1]", "[" * 100_000, "null"]


def test_damaged_lines_are_skipped(run, capsys):
    lines = [json.dumps({"step": 1}), *DAMAGED, json.dumps({"step": 2}), json.dumps({"step": 3}), '{"step": 4']
    (run / "metrics.jsonl").write_text("\n".join(lines))
    JsonlTracker(run / "metrics.jsonl", 2).close()
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2]
    assert f"{len(DAMAGED)} damaged lines" in capsys.readouterr().out


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_a_one_line_error(run, monkeypatch, capsys, number):
    def flock(*_):
        raise OSError(number, "x")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(run):
        pass
    assert "without locks" in capsys.readouterr().out


def test_unwritable_checkpoint_folder_is_reported_at_start(run):
    (run / "checkpoints").touch()
    with pytest.raises(ConfigError, match="checkpoints' cannot be written"):
        resume(run)
