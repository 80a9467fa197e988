"""Each run gets a new folder; resuming must be requested; finished runs and failed starts change nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentrl.cli.main import main
from agentrl.config import validate_config
from agentrl.config.document import redacted
from agentrl.config.paths import absolute
from agentrl.errors import ConfigError
from agentrl.run_folder.location import check_free, link_latest, opened, run_at
from agentrl.run_folder.saved_config import config_in

REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
TOOL = """
import os
from agentrl.tools.function import tool
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")

@tool
def look(place: str) -> str:
    '''Look.

    Args:
        place: where.
    '''
    return "there"
"""


def config(folder=None, **trainer):
    place = {"default_local_dir": folder} if folder else {}
    return validate_config({"model": {"path": "m"}, "data": {"train_files": ["t"]}, "trainer": place | trainer})


def state(folder: Path) -> dict[str, str]:
    """Every file and link below it, with its content."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()]
    return {
        str(path): str(path.readlink()) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def test_each_command_without_a_folder_gets_a_fresh_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = []
    for _ in range(3):
        with opened(config(experiment_name="e")) as placed:
            folders.append(placed.trainer.run_dir)
            (folders[-1] / "config.yaml").write_text("{}")
            link_latest(folders[-1])
    assert len(set(folders)) == 3
    assert {folder.parent for folder in folders} == {tmp_path / "outputs/e"}
    assert (tmp_path / "outputs/e/latest").readlink() == Path(folders[-1].name)
    assert run_at(Path("outputs/e")) == folders[-1]
    with opened(config(experiment_name="e", resume_mode="auto")) as placed:
        assert placed.trainer.run_dir == folders[-1]


def fail_in(each, name):
    with opened(each) as placed:
        (placed.trainer.run_dir / name).parent.mkdir(exist_ok=True)
        (placed.trainer.run_dir / name).write_text("{}")
        (placed.trainer.run_dir / "nothing").read_text()


def test_failed_start_leaves_no_folder_or_parents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for each in (config(), config("a/b/c")):
        with pytest.raises(FileNotFoundError):
            fail_in(each, "sglang/log")
    assert list(tmp_path.iterdir()) == []


def test_failure_after_the_start_keeps_the_run_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        fail_in(config(tmp_path / "run"), "config.yaml")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_folder_with_a_run_is_refused_with_differences_and_options(tmp_path):
    saved = redacted(config(tmp_path))
    saved["rollout"]["multi_turn"]["format"] = "hermes"  # chosen by the run: the setting was auto and still is
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    with pytest.raises(ConfigError) as refused:
        check_free(config(tmp_path, seed=7))
    first, second = str(refused.value).splitlines()
    assert "trainer.default_local_dir=" in first
    assert "trainer.resume_mode=auto" in first
    assert second.strip() == "trainer.seed was 0 and is now 7"
    check_free(config(tmp_path, seed=7, resume_mode="auto"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "generate"])
def test_folder_with_a_run_is_refused_before_torch_is_imported(task_folder, tmp_path, command):
    (tmp_path / "config.yaml").write_text("{}")
    given = [f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "rollout.n=2"]
    words = [command, *given, f"trainer.default_local_dir={tmp_path}"]
    code = (
        "import sys; from agentrl.cli.main import main; status = main(sys.argv[1:]);"
        "print(status, {'torch', 'transformers', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.stdout == "2 set()\n"
    assert "holds a run already" in done.stderr


def test_paths_are_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("rows.jsonl", "loop.py", "default"):
        Path(name).touch()
    given = {
        "model": {"path": "owner/name"},
        "data": {"train_files": ["rows.jsonl", "owner/rows"]},
        "rollout": {"agent": {"default_agent_loop": "loop.py:Mine"}},
        "reward": {"components": {"one": {"reward": "loop.py:score"}}},
    }
    made = absolute(validate_config(given))
    assert made.model.path == "owner/name"
    assert made.data.train_files == (str(tmp_path / "rows.jsonl"), "owner/rows")
    assert made.rollout.agent.default_agent_loop == f"{tmp_path}/loop.py:Mine"
    assert made.reward.components["one"].reward == f"{tmp_path}/loop.py:score"
    assert made.trainer.experiment_name == "default"


def test_a_run_that_was_moved_finds_its_own_files(tmp_path):
    kept = redacted(config(tmp_path / "before"))
    kept["data"]["train_files"] = [str(tmp_path / "before/data/rows.jsonl"), str(tmp_path / "before2")]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(kept))
    now = config_in(tmp_path)
    assert now["data"]["train_files"] == [str(tmp_path / "data/rows.jsonl"), str(tmp_path / "before2")]
    assert now["trainer"]["default_local_dir"] == str(tmp_path)


def refused(capsys, *words):
    assert main(["train", *words]) == 2
    return capsys.readouterr().err


def test_resume_needs_a_run_and_the_secrets_it_does_not_keep(tmp_path, capsys):
    assert "contains no run" in refused(capsys, "--resume", str(tmp_path))
    kept = redacted(config(tmp_path))
    kept["reward"]["custom_reward_function"]["reward_kwargs"] = {"api_key": "(redacted)"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(kept))
    said = refused(capsys, "--resume", str(tmp_path))
    assert "give reward.custom_reward_function.reward_kwargs.api_key=" in said
    assert "unknown key 'rollout.nn'" in refused(capsys, "--resume", str(tmp_path), "rollout.nn=3")


def open_files() -> list[Path]:
    return [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]


def test_forked_child_does_not_keep_the_lock(tmp_path):
    """A forked worker may outlive a killed run; the folder's lock is free nevertheless."""
    with opened(config(tmp_path / "run")) as placed:
        folder = placed.trainer.run_dir
        (folder / "config.yaml").write_text("{}")
        lock = folder / ".lock"
        assert lock in open_files()
        if not (child := os.fork()):
            os._exit(lock in open_files())
        assert os.waitpid(child, 0)[1] == 0
        assert lock in open_files()
    assert not (folder / ".lock").exists()


def started(task_folder: Path, *overrides: str) -> list[str]:
    return [
        *("train", f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl"),
        *("data.train_max_samples=4", "data.train_batch_size=2", "data.max_response_length=8", "rollout.n=2"),
        *("rollout.multi_turn.function_tool_path=tool.py", "rollout.agent.default_agent_loop=tool_agent"),
        *("reward.custom_reward_function.path=reward.py", "trainer.logger=[jsonl]"),
        *("trainer.total_training_steps=2", "trainer.save_interval_s=1e-6", *overrides),
    ]


@pytest.mark.slow
def test_tool_that_changes_directory_does_not_affect_the_run(task_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("reward.py").write_text(REWARD)
    Path("tool.py").write_text(TOOL)
    assert main(started(task_folder)) == 0
    assert list((tmp_path / "elsewhere").iterdir()) == []
    run = (tmp_path / "outputs/default/latest").resolve()
    assert sorted(path.name for path in (run / "trajectories/train").iterdir()) == [
        "step-000001.parquet",
        "step-000002.parquet",
    ]
    assert (run / "checkpoints/step-1").is_dir()  # saved because save_interval_s had passed
    before = state(tmp_path / "outputs")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "outputs/default", "actor.optim.lr=3e-4"]) == 0
    assert "already finished at step 2" in capsys.readouterr().out
    assert state(tmp_path / "outputs") == before
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "outputs/default", "trainer.total_training_steps=3"]) == 0
    assert (run / "checkpoints/step-3").is_dir()
