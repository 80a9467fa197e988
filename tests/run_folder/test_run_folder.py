"""A run's folder: one run at a time, changed settings on resume, and a full disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentrl.cli.main import main
from agentrl.config import validate_config
from agentrl.config.document import redacted
from agentrl.config.rules.combinations import check_training
from agentrl.errors import ConfigError
from agentrl.run_folder.checkpoints import STATE_FILE, start_of
from agentrl.run_folder.files import StorageError, disk_errors_in_one_line, locked, write_atomically
from agentrl.run_folder.resume import check_folder, how_to_resume
from agentrl.telemetry.jsonl import JsonlTracker
from agentrl.trainer.builders.records import open_records

ROOT = Path(__file__).parents[2]

HOLD = """
import sys, time
from pathlib import Path
from agentrl.run_folder.files import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_folder_lock_is_exclusive_and_released_on_kill(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError) as refused, locked(tmp_path):
            pass
        os.kill(holder.pid, signal.SIGKILL)
    assert str(refused.value).startswith(f"'{tmp_path}' is in use by another run, process {holder.pid}: ")
    assert "trainer.default_local_dir" in str(refused.value)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def inputs(folder) -> list[str]:
    """A model and rows without errors up to the point of loading."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (folder / "rows.jsonl").write_text('{"prompt": "a"}')
    return [f"model.path={folder}", f"data.train_files={folder}/rows.jsonl"]


def test_second_run_in_one_folder_is_refused(tmp_path, capsys):
    with locked(tmp_path):
        given = [*inputs(tmp_path / "in"), f"trainer.default_local_dir={tmp_path}"]
        assert main(["train", *given]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"process {os.getpid()}" in said


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"trainer\.default_local_dir.*file/run"), locked(tmp_path / "file/run"):
        pass


def test_full_disk_at_the_start_is_a_one_line_error(tmp_path, monkeypatch, capsys):
    given = [*inputs(tmp_path / "in"), f"trainer.default_local_dir={tmp_path}"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", really_full)  # ftruncate of the lock file
        assert main(["train", *given]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"writing to '{tmp_path}': no space left on device; make room" in said


def config(folder, **changes):
    trainer = {"default_local_dir": folder, "resume_mode": "auto"}
    values = {"model": {"path": "m"}, "trainer": trainer, "data": {"train_files": ["a"]}}
    for key, value in changes.items():
        section, name = key.split("__")
        values.setdefault(section, {})[name] = value
    return validate_config(values)


@pytest.fixture
def begun(tmp_path):
    """A folder with a run that can be resumed."""
    kept = redacted(config(tmp_path, reward__custom_reward_function={"reward_kwargs": {"api_key": "first"}}))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(kept))
    save_steps(tmp_path, 3)
    (tmp_path / "checkpoints/latest").symlink_to("step-3")
    return tmp_path


def test_changed_keys_are_reported_one_per_line_without_secrets(begun, capsys):
    kwargs = {"reward_kwargs": {"api_key": "second", "scale": 2}}
    check_folder(config(begun, rollout__n=4, actor__ppo_epochs=2, reward__custom_reward_function=kwargs))
    assert capsys.readouterr().out.splitlines() == [
        "changed: actor.ppo_epochs was 1 and is now 2",
        "changed: rollout.n was None and is now 4",
    ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model__path", "other"),
        ("data__train_files", ["b"]),
        ("trainer__seed", 1),
        ("data__shuffle", False),
        ("data__train_max_samples", 8),
        ("data__filter_overlong_prompts", True),
    ],
)
def test_changes_of_fixed_keys_are_refused(begun, capsys, key, value):
    with pytest.raises(ConfigError) as refused:
        check_folder(config(begun, rollout__n=4, **{key: value}))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"'{key.replace('__', '.')}' was ")
    assert "trainer.default_local_dir" in line
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_filter_settings_are_fixed_if_rows_are_filtered(begun, capsys):
    check_folder(config(begun, data__max_prompt_length=99))
    assert capsys.readouterr().out == "changed: data.max_prompt_length was 1024 and is now 99\n"
    (begun / "config.yaml").write_text(yaml.safe_dump(redacted(config(begun, data__filter_overlong_prompts=True))))
    with pytest.raises(ConfigError, match=r"'data\.max_prompt_length' was 1024 and is now 99"):
        check_folder(config(begun, data__filter_overlong_prompts=True, data__max_prompt_length=99))


def test_a_run_that_only_samples_keeps_the_size_of_its_steps(begun):
    """The resume position is counted in steps of this size."""
    sampling = {"trainer__mode": "rollout_only", "data__train_batch_size": 4}
    (begun / "config.yaml").write_text(yaml.safe_dump(redacted(config(begun, **sampling))))
    (begun / "trajectories/train").mkdir(parents=True)
    (begun / "trajectories/train/step-000001.parquet").touch()
    check_folder(config(begun, **sampling))
    with pytest.raises(ConfigError, match=r"'data\.train_batch_size' was 4 and is now 8"):
        check_folder(config(begun, **sampling | {"data__train_batch_size": 8}))


def save_steps(folder, *steps):
    for step in steps:
        (folder / f"checkpoints/step-{step}").mkdir(parents=True)
        (folder / f"checkpoints/step-{step}" / STATE_FILE).write_text(json.dumps({"step": step, "position": step}))


def forget(folder, step):
    (folder / f"checkpoints/step-{step}" / STATE_FILE).unlink()


def test_a_missing_latest_checkpoint_is_refused_without_another_complete_one(begun):
    forget(begun, 3)
    with pytest.raises(ConfigError) as refused:
        check_folder(config(begun))
    assert str(refused.value).endswith(
        f"the link '{begun}/checkpoints/latest' points to 'step-3', which is missing or incomplete, and"
        " there is no other checkpoint; restore it, or set another trainer.default_local_dir"
    )


def test_newest_complete_step_is_resumed_regardless_of_the_link(begun, capsys):
    save_steps(begun, 10, 2, 11)
    forget(begun, 11)
    check_folder(config(begun))
    led, passed = capsys.readouterr().out.splitlines()
    assert led.startswith(
        f"'{begun}/checkpoints/latest' pointed to step-3, but the newest complete checkpoint is step-10: "
    )
    assert passed == f"skipping the incomplete checkpoint '{begun}/checkpoints/step-11'"
    assert how_to_resume(config(begun)) == f"stopped; agentrl train --resume {begun} resumes from step-10"


def test_a_folder_without_the_link_is_resumed(begun, capsys):
    (begun / "checkpoints/latest").unlink()
    assert how_to_resume(config(begun)).endswith(" resumes from step-3")
    check_folder(config(begun))
    assert capsys.readouterr().out == ""


def back_to(folder, path, **changes):
    return config(folder, trainer__resume_mode="resume_path", trainer__resume_from_path=path, **changes)


def test_run_goes_back_to_a_given_step(begun, capsys):
    save_steps(begun, 5)
    for name in ("step-3", "latest"):
        going_back = back_to(begun, begun / "checkpoints" / name)
        assert start_of(going_back.trainer) == begun / "checkpoints/step-3"
        check_folder(going_back)
    assert capsys.readouterr().out == ""
    hint = how_to_resume(back_to(begun, begun / "checkpoints/step-3"))
    assert hint == f"stopped; agentrl train --resume {begun} resumes from step-5"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("checkpoints/step-4", "there are RUN/checkpoints/step-3, RUN/checkpoints/step-40"),
        ("checkpoints/global_step_40", "did you mean 'RUN/checkpoints/step-40'?"),
        ("global_step_3", "did you mean 'RUN/checkpoints/step-3'?"),
        (".", "there are RUN/checkpoints/step-3, RUN/checkpoints/step-40"),
        ("checkpoints", "there are RUN/checkpoints/step-3, RUN/checkpoints/step-40"),
    ],
)
def test_path_that_is_not_a_checkpoint_is_refused_with_a_list_of_checkpoints(begun, path, hint):
    save_steps(begun, 40)
    with pytest.raises(ConfigError) as refused:
        check_folder(back_to(begun, begun / path))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"'trainer.resume_from_path': '{begun / path}' is not a complete checkpoint of a run: ")
    assert line.endswith(hint.replace("RUN", str(begun)))


def test_a_verl_checkpoint_is_refused(begun, tmp_path):
    (tmp_path / "theirs/global_step_3/actor").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"there are none; a checkpoint of verl cannot be resumed: load"):
        check_folder(back_to(begun, tmp_path / "theirs/global_step_3"))


def test_run_with_linked_checkpoint_folder_is_found(begun, capsys):
    (begun / "checkpoints").rename(begun / "disk")
    (begun / "checkpoints").symlink_to("disk")
    for name in ("checkpoints/step-3", "checkpoints/latest"):
        check_folder(back_to(begun / "new", begun / name, rollout__n=4))
        assert capsys.readouterr().out.endswith("\nchanged: rollout.n was None and is now 4\n")


def test_checkpoint_of_another_run_starts_a_new_run(begun, capsys):
    start, new = begun / "checkpoints/step-3", begun / "new"
    check_folder(back_to(new, start, rollout__n=4))
    started, changed = capsys.readouterr().out.splitlines()
    assert started == f"starting from '{start}' of another run; that run's records are not copied"
    assert changed == "changed: rollout.n was None and is now 4"
    with pytest.raises(ConfigError, match=r"'trainer\.seed' was 0 and is now 1"):
        check_folder(back_to(new, start, trainer__seed=1))
    with pytest.raises(ConfigError, match=r"holds a run of trainer\.mode=train: "):
        check_folder(back_to(new, start, trainer__mode="train_only"))
    save_steps(new, 5)
    with pytest.raises(
        ConfigError, match=r"belongs to another run, but '.*/new/checkpoints' holds step-5 of this run: "
    ):
        check_folder(back_to(new, start))


@pytest.mark.parametrize(
    ("trainer", "complaint"),
    [
        ({"resume_mode": "path"}, "'trainer.resume_mode=path' needs 'trainer.resume_from_path'"),
        ({"resume_from_path": "a"}, "'trainer.resume_from_path' has no effect without 'trainer.resume_mode=path'"),
        ({"resume_mode": "path", "resume_from_path": "a", "mode": "rollout_only"}, "without 'trainer.mode=train'"),
    ],
)
def test_inconsistent_resume_settings_are_refused(tmp_path, trainer, complaint):
    with pytest.raises(ConfigError, match=complaint):
        check_training(config(tmp_path, **{f"trainer__{key}": value for key, value in trainer.items()}, rollout__n=2))


def test_a_restarted_run_reports_what_it_deletes(tmp_path, capsys):
    new = config(tmp_path, trainer__logger=["jsonl"])
    with open_records(new, None, 1, None) as records:
        records.log(1, {"reward/mean": 0.5})
    assert capsys.readouterr().out == ""
    (tmp_path / "trajectories/val").mkdir(parents=True)
    (tmp_path / "trajectories/val/step-000000.parquet").touch()
    with open_records(new, None, 1, 1):
        assert capsys.readouterr().out == ""  # resuming prints nothing
    with open_records(new, None, 1, None):
        assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert capsys.readouterr().out == (
        f"starting from step 0: '{tmp_path}' has no checkpoint to resume from; "
        "deleted old files: metrics.jsonl, trajectories\n"
    )


def test_a_restarted_run_may_change_every_setting(begun, capsys):
    (begun / "checkpoints/latest").unlink()
    forget(begun, 3)
    check_folder(config(begun, model__path="other", trainer__seed=1))
    assert capsys.readouterr().out == ""
    assert how_to_resume(config(begun)).endswith(" starts the run again")


def test_a_config_of_an_earlier_version_passes(begun, capsys):
    (begun / "config.yaml").write_text("trainer: {seed: 0, gone: 3}\nmodel: {path: m}\n")
    check_folder(config(begun))
    assert capsys.readouterr().out == ""


def really_full(*_, **__):
    with Path("/dev/full").open("w") as file:
        file.write("x")


def test_full_disk_is_a_user_error_and_other_errors_propagate(tmp_path):
    with pytest.raises(StorageError) as full, disk_errors_in_one_line(tmp_path, lambda: "go on"):
        really_full()
    assert str(full.value) == f"writing to '{tmp_path}': no space left on device; make room. go on"
    with pytest.raises(FileNotFoundError), disk_errors_in_one_line(tmp_path, str):
        (tmp_path / "none").read_text()


def fail_in(folder, work):
    with disk_errors_in_one_line(folder, lambda: "go on"):
        work()


def test_disk_failure_is_a_one_line_error(tmp_path):
    memory = Path("/proc/self/mem")  # reading at its beginning fails
    with memory.open("rb", buffering=0) as file, pytest.raises(StorageError) as failed:
        fail_in(tmp_path, lambda: file.read(1))
    assert str(failed.value) == f"writing to '{tmp_path}': input/output error. go on"
    with pytest.raises(StorageError, match="read-only file system"), disk_errors_in_one_line(tmp_path, str):
        raise OSError(errno.EROFS, "x")


def test_a_file_of_the_run_that_may_not_be_written_is_named(tmp_path):
    own, other = (PermissionError(errno.EACCES, "x", path) for path in (tmp_path / "run/a", tmp_path / "b"))
    with pytest.raises(StorageError) as refused, disk_errors_in_one_line(tmp_path / "run", lambda: "go on"):
        raise own
    assert str(refused.value) == f"writing to '{tmp_path}/run/a': permission denied. go on"
    with pytest.raises(PermissionError), disk_errors_in_one_line(tmp_path / "run", str):
        raise other


def test_full_disk_leaves_the_previous_file_unchanged(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", "first")
    monkeypatch.setattr(Path, "replace", really_full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", "second")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "first"}


def full_in_second_step(write):
    def full(self, step, *rest):
        return really_full() if step == 2 else write(self, step, *rest)

    return full


@pytest.fixture
def calculator(task_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    small = ["data.train_max_samples=8", "rollout.n=2", "data.train_batch_size=2"]
    files = [f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]"]
    own = [*small, "trainer.stop_when=null", "trainer.test_freq=0", "trainer.logger=[jsonl]"]
    steps = ["trainer.total_training_steps=2", "trainer.save_freq=1", f"trainer.default_local_dir={tmp_path}"]
    steps.append("trainer.resume_mode=auto")
    return ["train", "+experiment=calculator", *files, *own, *steps]


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "where",
    ["checkpoint", "metrics", "trajectories", "report"],
)
def test_full_disk_ends_a_run_with_a_complete_last_checkpoint(calculator, tmp_path, monkeypatch, capsys, where):
    from agentrl.reporting import report
    from agentrl.run_folder import checkpoints as checkpoint
    from agentrl.store import TrajectoryStore

    owner, name, last = {
        "metrics": (JsonlTracker, "log", 1),
        "trajectories": (TrajectoryStore, "write", 1),
        "checkpoint": (checkpoint.RunState, "__init__", 1),
        "report": (report, "write_atomically", 2),
    }[where]
    full = really_full if where == "report" else full_in_second_step(getattr(owner, name))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        assert main(calculator) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"agentrl: error: writing to '{tmp_path}': no space left on device; make room. stopped; ")
    assert (tmp_path / "checkpoints/latest").resolve().name == f"step-{last}"
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert main(calculator) == 0  # with free space again
    assert (tmp_path / "report.html").exists()


def test_quota_errors_count_as_a_full_disk(tmp_path):
    with pytest.raises(StorageError, match="quota"), disk_errors_in_one_line(tmp_path, str):
        raise OSError(errno.EDQUOT, "x")
