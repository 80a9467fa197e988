"""Complete runs of the calculator task, reduced to a few steps, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from agentrl.cli.main import main

ROOT = Path(__file__).parents[2]
SMALL = ["data.val_max_samples=8", "data.train_batch_size=4", "trainer.test_freq=2", "trainer.logger=[jsonl]"]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiments' paths are relative to ROOT


def files(task_folder: Path, train: str) -> list[str]:
    return [
        f"model.path={task_folder}/model",
        f"data.train_files={task_folder}/{train}",
        f"data.val_files={task_folder}/val.jsonl",
    ]


def grpo(task_folder: Path, run: Path, *overrides: str) -> int:
    options = [*files(task_folder, "train.jsonl"), *SMALL, "rollout.n=2", f"trainer.default_local_dir={run}"]
    options.append("trainer.resume_mode=auto")
    return main(["train", "+experiment=calculator", *options, *overrides])


def weights(run: Path) -> dict[str, object]:
    return {k: v.tolist() for k, v in load_file(run / "checkpoints/latest/model.safetensors").items()}


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def untimed(row: dict[str, float]) -> dict[str, float]:
    # the engine's batching varies with timing, too
    timed = ("timing_s/", "perf/", "engine/", "_s", "_s/mean", "_s/max")
    return {k: v for k, v in row.items() if not k.startswith(timed[:3]) and not k.endswith(timed[3:])}


def test_run_writes_all_documented_files(task_folder, tmp_path, capsys):
    options = ["trainer.logger=[jsonl,tensorboard]", "trainer.log_val_generations=2", "trainer.profile_steps=[2]"]
    assert grpo(task_folder, tmp_path, "trainer.total_training_steps=3", *options) == 0
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3]
    assert "val/success" in rows(tmp_path)[0]
    expected = {"reward/mean", "actor/loss", "timing_s/collect", "perf/tokens_per_s", "engine/cached_share"}
    assert expected | {"tools/abandoned_calls", "tools/replaced_loops"} <= rows(tmp_path)[1].keys()
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["rollout"]["n"] == 2
    assert (tmp_path / "checkpoints/latest").resolve().name == "step-3"
    assert len(json.loads((tmp_path / "samples.json").read_text())) == 3 * 3  # of three validations
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert list((tmp_path / "tensorboard").iterdir())
    generations = [json.loads(line) for line in (tmp_path / "generations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in generations] == [0, 0, 2, 2, 3, 3]
    assert generations[0]["input"] == generations[2]["input"]  # the same tasks in every validation
    trace = json.loads((tmp_path / "profile/step-2.json").read_text())["traceEvents"]
    assert len({event["tid"] for event in trace if event.get("name") == "aten::mm"}) == 2  # engine and backend
    assert "report:" in capsys.readouterr().out


@pytest.mark.slow
def test_a_stopped_run_resumes_without_difference(task_folder, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for run, num_steps in ((whole, 4), (halves, 2), (halves, 4)):
        schedule = "actor.optim.total_updates=4"  # for the complete run, also in its first half
        assert grpo(task_folder, run, f"trainer.total_training_steps={num_steps}", schedule) == 0
    assert weights(whole) == weights(halves)
    assert list(map(untimed, rows(whole))) == list(map(untimed, rows(halves)))


@pytest.mark.slow
def test_sft_lowers_the_loss_and_stops_at_the_validation_goal(task_folder, tmp_path):
    options = [*files(task_folder, "sft.jsonl"), *SMALL, f"trainer.default_local_dir={tmp_path}"]
    goal = "trainer.stop_when={metric: val/success, at_least: 0}"
    assert main(["train", "+experiment=calculator_sft", *options, "trainer.val_before_train=false", goal]) == 0
    losses = [row["actor/loss"] for row in rows(tmp_path)]
    assert len(losses) == 2  # the first validation is after step 2
    assert losses[1] < losses[0]


@pytest.mark.slow
def test_a_conversation_that_is_too_long_is_named(task_folder, tmp_path, capsys):
    options = [
        *files(task_folder, "sft.jsonl"),
        "data.val_files=[]",
        "data.max_prompt_length=8",
        "trainer.stop_when=null",
    ]
    short = ["data.max_response_length=8", "trainer.logger=[jsonl]", f"trainer.default_local_dir={tmp_path}"]
    assert main(["train", "+experiment=calculator_sft", *options, *short]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{task_folder}/sft.jsonl row" in said
    assert "tokens, more than data.max_prompt_length + data.max_response_length, 8 + 8" in said


@pytest.mark.slow
def test_run_that_reached_its_goal_does_not_resume(task_folder, tmp_path):
    goal = ["trainer.stop_when={metric: val/success, at_least: 0}", "trainer.val_before_train=false"]
    for _ in range(2):
        assert grpo(task_folder, tmp_path, *goal) == 0
        assert rows(tmp_path)[-1]["step"] == 2  # the first validation


@pytest.mark.slow
def test_evaluation_does_not_change_the_records_of_a_run(task_folder, tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    options = [*files(task_folder, "train.jsonl"), "data.val_max_samples=2", f"trainer.default_local_dir={tmp_path}"]
    assert main(["eval", "+experiment=calculator", *options]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"config.yaml", "eval.json", "eval_samples.json"}
    assert (tmp_path / "config.yaml").read_text() == "{}"


@pytest.mark.slow
def test_evaluation_uses_the_given_weights(task_folder, tmp_path):
    options = [*files(task_folder, "train.jsonl"), "data.val_max_samples=8", f"trainer.default_local_dir={tmp_path}"]
    assert main(["eval", "+experiment=calculator", *options, "rollout.val_kwargs.n=2"]) == 0
    figures = json.loads((tmp_path / "eval.json").read_text())
    assert figures["val/num_tasks"] == 8
    assert figures["val/success"] == 0.0  # random weights
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["devices"].keys() == {"rollout"}
    assert environment["reproducible"]["promised"]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["data.max_prompt_length=8"], "data.max_prompt_length"),
        (["model.path=/nowhere/at/all"], "/nowhere/at/all"),
        (["rollout.agent.default_agent_loop=tool_agnt"], "did you mean 'tool_agent'"),
        (["rollout.multi_turn.format=react"], "hermes"),
        (["rollout.agent.default_agent_loop=single_turn_agent"], "calls none"),
        (["trainer.stop_when={metric: val/sucess, at_least: 1}"], "val/sucess"),
    ],
)
def test_impossible_settings_are_refused_at_the_start_in_one_line(task_folder, tmp_path, capsys, overrides, complaint):
    assert grpo(task_folder, tmp_path, *overrides) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert complaint in said[0]


def test_a_start_that_fails_leaves_the_configuration_of_a_run(task_folder, tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    assert grpo(task_folder, tmp_path, "model.path=/nowhere/at/all") == 2
    assert (tmp_path / "config.yaml").read_text() == "{}"


@pytest.mark.slow
def test_failed_resume_keeps_the_saved_configuration(task_folder, tmp_path, capsys):
    steps = ["trainer.total_training_steps=1", "data.val_files=[]", "trainer.stop_when=null", "trainer.test_freq=0"]
    assert grpo(task_folder, tmp_path, *steps) == 0
    before = (tmp_path / "config.yaml").read_text()
    assert grpo(task_folder, tmp_path, *steps, "actor.optim.name=muon", "trainer.total_training_steps=2") == 2
    assert "'muon' does not fit the checkpoint" in capsys.readouterr().err
    assert (tmp_path / "config.yaml").read_text() == before


@pytest.mark.slow
def test_evaluation_needs_no_training_data(task_folder, tmp_path):
    options = [*files(task_folder, "gone.jsonl"), "data.val_max_samples=2", f"trainer.default_local_dir={tmp_path}"]
    assert main(["eval", "+experiment=calculator", *options]) == 0


@pytest.mark.slow
def test_the_records_of_a_run_do_not_depend_on_where_metrics_are_shown(task_folder, tmp_path):
    assert grpo(task_folder, tmp_path, "trainer.total_training_steps=1", "trainer.logger=console") == 0
    assert [row["step"] for row in rows(tmp_path)] == [0, 1]
    assert (tmp_path / "report.html").exists()


def test_folder_with_a_run_is_not_overwritten(task_folder, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("{}")
    assert grpo(task_folder, tmp_path, "trainer.resume_mode=disable") == 2
    assert "holds a run" in capsys.readouterr().err
