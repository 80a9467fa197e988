"""`agentrl quickstart` removes only its own files, refuses early, and prints commands that work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli import quickstart as module
from agentrl.cli.compose import compose_config
from agentrl.cli.main import main
from agentrl.cli.quickstart import Demo, fresh_folder, print_end, program_in_shell
from agentrl.errors import ConfigError
from agentrl.utils.shipped import shipped

SUMMARY = {
    "success_before": 0.19,
    "success_after": 0.934,
    "num_test_tasks": 512,
    "samples_per_task": 2,
    "sft_steps": 700,
    "rl_steps": 60,
    "sft_seconds": 49.2,
    "rl_seconds": 65.0,
}


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """The commands that would have been run."""
    commands: list[list[str]] = []
    monkeypatch.setattr(module, "run", lambda command: commands.append(list(command)) or 0.0)
    return commands


def test_folder_not_created_by_us_is_refused_and_kept(tmp_path, capsys, started):
    (tmp_path / "thesis.txt").write_text("years")
    assert main(["quickstart", "--out", str(tmp_path)]) == 2
    assert "was not made by `agentrl quickstart`" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert started == []


def test_second_quickstart_replaces_only_files_of_the_first(tmp_path, capsys):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    with fresh_folder(out):
        (out / "rl").mkdir()
        (out / "rl/metrics.jsonl").touch()
        (out / "summary.json").touch()
        (out / "sft").symlink_to(elsewhere)
        (out / "mine").mkdir()
        with pytest.raises(ConfigError, match="another quickstart is running"), fresh_folder(out):
            pass
    with fresh_folder(out):
        assert sorted(path.name for path in out.iterdir()) == [".quickstart", "mine"]
    assert (elsewhere / "kept").exists()
    assert capsys.readouterr().out == f"Replacing the files of an earlier quickstart in '{out}'.\n"


def test_unwritable_folder_is_a_one_line_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to"), fresh_folder(tmp_path / "file/out"):
        pass


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.total_training_stepss=1", "total_training_steps"),
        ("algorithm.name=gspo", r"agentrl train \+experiment=calculator algorithm.name=gspo"),
    ],
)
def test_a_wrong_override_is_refused_before_anything_is_written(tmp_path, monkeypatch, started, override, line):
    monkeypatch.chdir(tmp_path)
    options = {"out": Path("outputs/quickstart"), "seed": 0}
    with pytest.raises(ConfigError, match=line):
        Demo(**options, overrides=(override,)).check()
    assert main(["quickstart", override]) == 2
    assert started == []
    assert list(tmp_path.iterdir()) == []


def test_another_folder_is_named_in_every_command(tmp_path, started):
    demo = Demo(tmp_path / "a folder", seed=3)
    demo.train("calculator", "rl")
    config = compose_config(started[0][4:])
    assert config.trainer.seed == 3
    assert config.trainer.run_dir == tmp_path / "a folder/rl"
    assert [Path(path) for path in config.data.train_files] == [tmp_path / "a folder/task/train.jsonl"]
    assert Path(config.model.path) == tmp_path / "a folder/sft/checkpoints/latest"
    assert Demo(Path("outputs/quickstart"), seed=0).files("calculator") == []


def test_a_command_that_fails_ends_the_quickstart_with_its_status():
    with pytest.raises(SystemExit) as ended:
        module.run([sys.executable, "-c", "raise SystemExit(3)"])
    assert ended.value.code == 3


@pytest.mark.slow
def test_an_interrupt_ends_the_command_that_runs():
    code = "import signal; from agentrl.cli.quickstart import run\n"
    code += "import sys; run([sys.executable, '-c', 'import os, signal; os.kill(os.getppid(), 2); signal.pause()'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "KeyboardInterrupt" in done.stderr


def test_the_last_lines_are_commands_for_this_shell(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".venv/bin"
    folder.mkdir(parents=True)
    for name in ("agentrl", "activate"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    print_end(SUMMARY, Path("outputs/quickstart"), [])
    out = capsys.readouterr().out
    assert "19.0%" in out
    assert "93.4%" in out
    assert ".venv/bin/agentrl view outputs/quickstart/rl\n" in out
    assert ".venv/bin/agentrl train +experiment=calculator algorithm.name=gspo\n" in out
    assert "source .venv/bin/activate" in out

    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    print_end(SUMMARY, Path("outputs/quickstart"), [])
    out = capsys.readouterr().out
    assert "\n  agentrl replay outputs/quickstart/rl audit\n" in out
    assert "activate" not in out

    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert program_in_shell() == "uv run agentrl"


def test_shipped_files_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = compose_config(["+experiment=calculator"])
    assert Path(config.rollout.multi_turn.function_tool_path).is_file()
    assert shipped("examples/calculator/tool.py").is_absolute()
    override = "rollout.multi_turn.function_tool_path=${agentrl:examples/calculator/tool.py}"
    assert (
        compose_config(["model.path=m", override]).rollout.multi_turn
        == compose_config(
            ["model.path=m", f"rollout.multi_turn.function_tool_path={shipped('examples/calculator/tool.py')}"]
        ).rollout.multi_turn
    )
