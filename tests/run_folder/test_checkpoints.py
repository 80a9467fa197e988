"""Checkpoints of a run: files on disk at each moment, how many are kept, and cleanup on resume."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest
from killed_runs import arguments
from same_run import compare, differences

from agentrl.cli.main import main
from agentrl.config.trainer import TrainerConfig
from agentrl.data.order import Draw
from agentrl.errors import ConfigError
from agentrl.run_folder.checkpoints import read_best, read_state
from agentrl.trainer.checkpointing import open_checkpoints
from agentrl.trainer.protocols import Best
from agentrl.trainer.sources.live import StoredSource


class FileBackend:
    """Its weights are a number, saved in a file in a folder."""

    def __init__(self):
        self.weights = 0

    async def save(self, path):
        (path / "inner").mkdir(parents=True)
        (path / "inner/weights").write_text(str(self.weights))

    async def load(self, path):
        self.weights = int((path / "inner/weights").read_text())


class SlowBackend(FileBackend):
    """Its files are written when a test calls `write`."""

    async def begin_save(self, path):
        weights, done = self.weights, Future()

        def write(error=None):
            (path / "weights").write_text(str(weights))
            done.set_exception(error) if error else done.set_result(None)

        self.write = write
        return done


class TornBackend(FileBackend):
    async def load(self, path):
        raise ConfigError.keyless("torn")


def opened(run_dir, backend=None, **trainer):
    config = TrainerConfig(default_local_dir=run_dir, **{"max_checkpoints_to_keep": None} | trainer)
    return open_checkpoints(config, backend or FileBackend(), StoredSource(lambda step: [], ()))


def save(run_dir, *steps, best=(), **trainer):
    """One process of a run, which saves those steps."""
    checkpoints = opened(run_dir, **trainer)

    async def life():
        await checkpoints.restore()
        for step in steps:
            checkpoints._backend.weights = checkpoints._source.position = step
            await checkpoints.save(step, Best("val/success", step / 10, step) if step in best else None)

    asyncio.run(life())
    return checkpoints


def saved(run_dir):
    """Names in the folder; links with their targets."""
    paths = sorted((run_dir / "checkpoints").iterdir(), key=lambda path: (len(path.name), path.name))
    return [f"{path.name}>{path.readlink()}" if path.is_symlink() else path.name for path in paths]


def go_back(run_dir, step, **trainer):
    return {"resume_mode": "path", "resume_from_path": run_dir / f"checkpoints/step-{step}", **trainer}


def test_checkpoint_files_are_synced_before_renaming(tmp_path, monkeypatch):
    told, real = [], (os.fsync, Path.rename)

    def fsync(descriptor):
        told.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))
        real[0](descriptor)

    def rename(path, target):
        told.append("renamed")
        return real[1](path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    save(tmp_path, 1)
    before, after = told[: told.index("renamed")], told[told.index("renamed") :]
    aside = "checkpoints/.step-1.partial"
    assert {f"{aside}/inner/weights", f"{aside}/run_state.json", f"{aside}/inner", aside} <= set(before)
    assert after[1:3] == ["checkpoints", "."]  # fsync of the name, and of the folder's name
    assert after[-1] == "checkpoints"  # fsync of the links


def test_the_oldest_are_removed_but_never_the_best(tmp_path):
    save(tmp_path, 1, 2, 10, 11, best=[2], max_checkpoints_to_keep=2)
    assert saved(tmp_path) == ["best>step-2", "latest>step-11", "step-2", "step-10", "step-11"]
    save(tmp_path, 12, best=[12], max_checkpoints_to_keep=1)
    assert saved(tmp_path) == ["best>step-12", "latest>step-12", "step-12"]


def in_background(tmp_path, life):
    checkpoints = opened(tmp_path, SlowBackend(), async_save=True, max_checkpoints_to_keep=1)
    asyncio.run(life(checkpoints, checkpoints._backend))


def test_a_checkpoint_appears_when_all_its_files_are_written(tmp_path):
    async def life(checkpoints, backend):
        for step in (1, 2):
            backend.weights = checkpoints._source.position = step
            await checkpoints.save(step, Best("val/success", 1, step))
            backend.weights = checkpoints._source.position = step + 10  # the next step changes them
            assert f"step-{step}" not in saved(tmp_path)
            assert checkpoints.check() is None
            backend.write()
            await checkpoints.finish()
        assert saved(tmp_path) == ["best>step-2", "latest>step-2", "step-2"]
        assert read_state(tmp_path / "checkpoints/latest").position == 2
        assert (tmp_path / "checkpoints/latest/weights").read_text() == "2"

    in_background(tmp_path, life)


def test_second_save_waits_for_the_first_to_finish(tmp_path):
    async def life(checkpoints, backend):
        await checkpoints.save(1)
        first = backend.write
        second = asyncio.create_task(checkpoints.save(2))
        await asyncio.sleep(0.05)
        assert backend.write is first
        first()
        await second
        assert {"latest>step-1", "step-1"} <= {*saved(tmp_path)}
        backend.write()
        await checkpoints.finish()
        assert saved(tmp_path) == ["latest>step-2", "step-2"]

    in_background(tmp_path, life)


def test_a_failed_save_in_the_background_ends_the_run_and_keeps_the_earlier_checkpoint(tmp_path):
    async def life(checkpoints, backend):
        await checkpoints.save(2)
        backend.write(ConfigError.keyless("the disk is full"))
        for use in (checkpoints.finish, checkpoints.finish, lambda: checkpoints.save(3)):
            with pytest.raises(ConfigError, match="full"):
                await use()
        with pytest.raises(ConfigError, match="full"):
            checkpoints.check()
        assert saved(tmp_path) == ["latest>step-1", "step-1"]

    save(tmp_path, 1)
    in_background(tmp_path, life)


def test_two_checkpoints_are_kept_by_default(tmp_path):
    save(tmp_path, 9, 10, 11, max_checkpoints_to_keep=TrainerConfig().max_checkpoints_to_keep)
    assert saved(tmp_path) == ["latest>step-11", "step-10", "step-11"]
    save(tmp_path / "all", 9, 10, 11)
    assert saved(tmp_path / "all") == ["latest>step-11", "step-9", "step-10", "step-11"]


def test_tasks_in_flight_are_saved_as_tasks(tmp_path):
    life = opened(tmp_path)
    life._source.position, life._source.pending = 9, [Draw(0, 3), Draw(1, 5, 1)]
    asyncio.run(life.save(4))
    again = opened(tmp_path)
    asyncio.run(again.restore())
    assert (again._source.position, again._source.pending) == (9, (Draw(0, 3), Draw(1, 5, 1)))


def test_checkpoint_without_pending_tasks_is_read(tmp_path):
    save(tmp_path, 2)
    file = tmp_path / "checkpoints/step-2/run_state.json"
    state = json.loads(file.read_text())
    assert state.pop("pending") == []
    file.write_text(json.dumps(state))
    assert read_state(file.parent).pending == ()


def test_leftovers_of_a_kill_are_cleaned_up_on_resume(tmp_path):
    save(tmp_path, 1, 2, best=[2])
    folder = tmp_path / "checkpoints"
    for name in (".step-3.partial", "..step-3.partial.partial", ".step-0.removed"):
        shutil.copytree(folder / "step-1", folder / name)
    (folder / ".latest.partial").symlink_to("step-1")
    (folder / "step-2/.run_state.json.partial").write_text("{")
    (folder / "latest").unlink()
    (folder / "best").unlink()
    assert save(tmp_path).best == Best("val/success", 0.2, 2)
    assert saved(tmp_path) == ["best>step-2", "latest>step-2", "step-1", "step-2"]
    assert sorted(path.name for path in (folder / "step-2").iterdir()) == ["inner", "manifest.json", "run_state.json"]


def test_leftovers_of_a_killed_first_checkpoint_are_deleted_by_the_next(tmp_path):
    (tmp_path / "checkpoints/.step-1.partial/inner").mkdir(parents=True)
    save(tmp_path, 2)
    assert saved(tmp_path) == ["latest>step-2", "step-2"]


def test_incomplete_step_is_skipped_and_rewritten(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "checkpoints/step-2/run_state.json").write_text('{"step":')
    assert opened(tmp_path).latest_step == 1
    save(tmp_path, 2)
    assert saved(tmp_path) == ["latest>step-2", "step-1", "step-2"]
    assert opened(tmp_path).latest_step == 2


def test_going_back_deletes_later_checkpoints_and_reports_it(tmp_path, capsys):
    save(tmp_path, 1, 2, 3, best=[1, 3])
    back = save(tmp_path, **go_back(tmp_path, 2))
    assert (back.latest_step, back._backend.weights, back._source.position) == (2, 2, 2)
    assert read_best(tmp_path) == back.best == Best("val/success", 0.1, 1)
    assert saved(tmp_path) == ["best>step-1", "latest>step-2", "step-1", "step-2"]
    assert "resuming at step-2: deleted later checkpoints (step-3)" in capsys.readouterr().out


def test_going_back_before_the_saved_best_step(tmp_path, capsys):
    save(tmp_path, 1, 2, 3, best=[1])
    shutil.rmtree(tmp_path / "checkpoints/step-1")
    assert save(tmp_path, **go_back(tmp_path, 2)).best is None
    assert saved(tmp_path) == ["latest>step-2", "step-2"]
    assert "the best checkpoint (val/success 0.1 at step 1) was deleted" in capsys.readouterr().out


def test_kill_while_going_back_keeps_earlier_steps(tmp_path, monkeypatch):
    save(tmp_path, 1, 2, 3, 4)

    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, **go_back(tmp_path, 1))
    assert opened(tmp_path).latest_step == 3  # the newest was removed first
    save(tmp_path)
    assert saved(tmp_path) == ["latest>step-3", "step-1", "step-2", "step-3"]


def test_an_unreadable_checkpoint_leaves_the_folder_unchanged(tmp_path):
    save(tmp_path, 1, 2, max_checkpoints_to_keep=2)
    (tmp_path / "checkpoints/latest").unlink()
    for trainer in ({"max_checkpoints_to_keep": 1}, go_back(tmp_path, 1)):
        with pytest.raises(ConfigError, match="torn"):
            asyncio.run(opened(tmp_path, TornBackend(), **trainer).restore())
        assert saved(tmp_path) == ["step-1", "step-2"]


def test_checkpoint_of_another_run_is_read_and_unchanged(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    save(one, 1, 2, best=[1])
    started = save(other, 3, **go_back(one, 2))
    assert started.best is None
    assert saved(other) == ["latest>step-3", "step-3"]
    assert saved(one) == ["best>step-1", "latest>step-2", "step-1", "step-2"]


def train(task_folder, folder, *overrides):
    short = ["trainer.total_training_steps=4", "trainer.save_freq=1", "trainer.max_checkpoints_to_keep=null"]
    return main([*arguments(task_folder, folder, "plain"), *short, *overrides])


@pytest.fixture(scope="module")
def whole(task_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("back") / "whole"
    assert train(task_folder, folder) == 0
    return folder


def back_to(folder, step):
    return ["trainer.resume_mode=path", f"trainer.resume_from_path={folder}/checkpoints/step-{step}"]


def rows(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_run_that_went_back_ends_with_the_same_result(task_folder, whole, tmp_path):
    again = Path(shutil.copytree(whole, tmp_path / "again", symlinks=True))
    assert train(task_folder, again, *back_to(again, 2)) == 0
    assert differences(whole, again) == []


@pytest.mark.slow
def test_run_started_from_another_checkpoint_gives_the_same_result(task_folder, whole, tmp_path):
    assert train(task_folder, tmp_path / "new", *back_to(whole, 3)) == 0
    assert rows(tmp_path / "new") == [4]
    said = json.loads((tmp_path / "new/environment.json").read_text())["reproducible"]
    assert said == json.loads((whole / "environment.json").read_text())["reproducible"]
    assert said["promised"]
    for name in ("model.safetensors", "trainer_state/state.pt"):
        assert not list(compare(name, *(run / "checkpoints/step-4" / name for run in (whole, tmp_path / "new"))))


@pytest.mark.slow
def test_incompatible_checkpoint_does_not_delete_records(task_folder, whole, tmp_path, capsys):
    kept = Path(shutil.copytree(whole, tmp_path / "kept", symlinks=True))
    assert train(task_folder, kept, *back_to(kept, 2), "actor.optim.name=muon") == 2
    assert "'muon' does not fit the checkpoint" in capsys.readouterr().err
    assert differences(whole, kept) == []
