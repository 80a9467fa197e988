from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from planned_run import saved_run
from tiny_models import save_model

from agentrl.cli.main import main

MODEL = Path(__file__).parents[1] / "architectures/qwen3_8b.json"


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(MODEL.read_text())
    return folder


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.yaml"
    path.write_text("{turn_tokens: {mean: 300, p95: 800}, tool_s: {mean: 1}, turns: {mean: 2}}")
    return path


def test_the_answer_has_seconds_price_and_bottleneck(model, lengths, tmp_path, capsys):
    files = ("--json", str(tmp_path / "plan.json"), "--picture", str(tmp_path / "plan.svg"))
    overrides = ("+experiment=calculator", f"model.path={model}", "--gpus", "h100", "--lengths", str(lengths))
    assert main(["plan", *overrides, *files]) == 0
    memory, *lines = capsys.readouterr().out.splitlines()
    found = json.loads((tmp_path / "plan.json").read_text())
    assert memory.startswith("memory: does not fit")  # 8 billion weights with their optimizer on one device
    assert found["memory"]["changes"][0] in memory
    assert any(found["bottleneck"] in line for line in lines)
    assert found["price_per_step"] == pytest.approx(found["simulated"]["step_s"] / 3600 * 3.0)
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_a_run_gives_lengths_and_speeds_and_keys_change_it(tmp_path, capsys):
    run = saved_run(tmp_path / "run", learn=0.9, collect=0.7, step=1.605, publish=0.002)
    save_model(tmp_path / "model", "qwen3")
    sizes = (f"model.path={tmp_path / 'model'}", "data.train_batch_size=2", "rollout.n=2")
    steps = []
    for num in (1, 2):
        file = tmp_path / f"{num}.json"
        command = ["plan", "--from", str(run), *sizes, f"trainer.n_gpus_per_node={num}", "--gpus", "cpu"]
        assert main([*command, "--json", str(file)]) == 0
        steps.append(json.loads(file.read_text())["simulated"])
    assert steps[0]["learn_s"] < steps[1]["learn_s"]  # two processes exchange more than they save for a tiny model
    assert "2xCPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gpus", "8xH1000"], "H1000"),
        ([], "--gpus"),
        (["--gpus", "h100", "--lengths", "none.yaml"], "none.yaml"),
        (["--gpus", "h100", "--from", "none"], "none"),
        (["--gpus", "h100", "--check", "none"], "none"),
    ],
)
def test_bad_arguments_end_with_status_2_and_name_the_mistake(arguments, named, model, capsys):
    assert main(["plan", "+experiment=calculator", f"model.path={model}", *arguments]) == 2
    assert re.search(re.escape(named), capsys.readouterr().err)
