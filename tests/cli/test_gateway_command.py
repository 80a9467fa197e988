"""`agentrl gateway`: what it prints, what Ctrl-C and kill -9 leave, and wrong options."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gateway_process import ask, chat, started

from agentrl.cli.main import main
from agentrl.store import TrajectoryStore

SCRIPT = "def reply(context):\n    return f'answer {len(context)}'\n"
SHARED, ADMIN = "the-key-of-all-clients", "the-key-of-the-admin"
KEYS = {"AGENTRL_GATEWAY_KEY": SHARED, "AGENTRL_ADMIN_KEY": ADMIN}


@pytest.fixture
def words(task_folder, tmp_path) -> list[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    engine = ["rollout.engine=scripted", "rollout.script_path=script.py:reply"]
    return ["--model", f"{task_folder}/model", *engine, "trainer.default_local_dir=run"]


def stored(folder: Path) -> list[str]:
    store = TrajectoryStore(folder / "trajectories/train")
    return sorted(each.task.messages[0]["content"] for each in store.scan())


@pytest.mark.slow
def test_ctrl_c_saves_the_running_conversations_and_kill_9_loses_only_those(words, tmp_path, capsys):
    with started(tmp_path, *words, **KEYS) as (process, variables):
        assert (variables["OPENAI_API_KEY"], variables["AGENTRL_ADMIN_KEY"]) == (SHARED, ADMIN)
        chat(variables, "first")
        opened = ask(f"{variables['AGENTRL_GATEWAY']}/rollouts", {}, ADMIN)
        key = opened["rollouts"][0]["key"]
        chat(variables, "second", key)
        ask(f"{variables['AGENTRL_GATEWAY']}/rollouts/{key}/end", {"reward": 1}, ADMIN)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert stored(tmp_path / "run") == ["second"]
    refused = ["gateway", *words[:4], f"rollout.script_path={tmp_path}/script.py:reply"]
    assert main([*refused, f"trainer.default_local_dir={tmp_path}/run"]) == 2
    assert "holds a run already" in capsys.readouterr().err
    with started(tmp_path, *words, "trainer.resume_mode=auto") as (process, variables):
        chat(variables, "third")
        assert ADMIN not in variables.values()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert stored(tmp_path / "run") == ["second", "third"]
    assert main(["replay", f"{tmp_path}/run", "audit"]) == 0
    texts = [path.read_text() for path in (tmp_path / "run").glob("*.*")]
    assert not any(secret in text for text in texts for secret in (SHARED, ADMIN, key))


@pytest.mark.parametrize(
    ("given", "environment", "complaints"),
    [
        ([], {}, ["model.path"]),
        (["--model", "nowhere/model"], {}, ["there is no folder 'nowhere/model'"]),
        (["--model", "M", "--idle-s", "0"], {}, ["--idle-s: expected seconds above 0"]),
        (["--model", "M"], {"AGENTRL_ADMIN_KEY": "short"}, ["AGENTRL_ADMIN_KEY: expected 16 to 128"]),
        (["--model", "M"], dict.fromkeys(KEYS, SHARED), ["are the same"]),
        (
            ["--model", "M", "rollout.multi_turn.environment=a.py:B", "data.train_files=a.jsonl", "reward.name=gsm8k"],
            {},
            ["'rollout.multi_turn.environment' has no effect", "'data.train_files' has no effect", "'reward' has no"],
        ),
        (
            ["--model", "M", "algorithm.name=sft", "rollout.harness=codex"],
            {},
            ["'algorithm.name=sft' makes no rollouts", "'rollout.harness' has no effect"],
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(
    given, environment, complaints, task_folder, monkeypatch, capsys
):
    for name in KEYS:
        monkeypatch.setenv(name, environment.get(name, ""))
    assert main(["gateway", *(f"{task_folder}/model" if word == "M" else word for word in given)]) == 2
    error = capsys.readouterr().err
    assert [each for each in complaints if each not in error] == []


def test_a_dry_run_shows_the_configuration_and_serves_nothing(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["gateway", *words, "rollout.n=4", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "rollout.n=4" in said
    assert "reward.name=none" in said
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.slow
def test_a_port_in_use_is_a_one_line_error(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with started(tmp_path, *words) as (_, variables):
        port = variables["AGENTRL_GATEWAY"].rpartition(":")[2]
        assert main(["gateway", *words[:-1], "trainer.default_local_dir=other", "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
