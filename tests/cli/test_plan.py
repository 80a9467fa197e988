from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from large_models import PUBLISHED
from planned_run import saved_run
from tiny_models import save_model

from agentrl.cli import plan as cli_plan
from agentrl.cli.main import main
from agentrl.plan.calibration import Calibration
from agentrl.plan.layout import servers_of

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
        (["cluster.gpus=8xA1000"], "A1000"),
        (["cluster.gpus=h100", "--gpus", "h100"], "cluster.gpus"),
        (["--gpus", "0xh100"], "0xh100"),
        (["--gpus", "h100", "data.train_batch_size=100000000"], "rollouts"),
        (["--gpus", "h100", "--lengths", "none.yaml"], "none.yaml"),
        (["--gpus", "h100", "--from", "none"], "none"),
        (["--gpus", "h100", "--check", "none"], "none"),
    ],
)
def test_bad_arguments_end_with_status_2_and_name_the_mistake(arguments, named, model, capsys):
    assert main(["plan", "+experiment=calculator", f"model.path={model}", *arguments]) == 2
    assert re.search(re.escape(named), capsys.readouterr().err)


LONG = ("data.max_prompt_length=1024", "data.max_response_length=64512", "actor.ppo_max_token_len_per_gpu=65536")
ONE_SERVER = (
    *("data.max_prompt_length=1024", "data.max_response_length=31744", "data.train_batch_size=64", "rollout.n=8"),
    *("rollout.sglang.num_replicas=1", "actor.ppo_max_token_len_per_gpu=32768", "actor.ppo_mini_batch_size=64"),
    *("trainer.n_gpus_per_node=7", "rollout.sglang.server_args.base_gpu_id=7"),
)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["--gpus", "rtx4090"], {"trainer.nnodes", "rollout.engine"}),
        (["+experiment=qwen3_8b", *LONG, "ref.param_offload=false", "--gpus", "8xh100"], {"actor.ulysses"}),
        (["+experiment=qwen3_8b", *ONE_SERVER, "--gpus", "8xh100"], {"rollout.max_num_seqs", "num_replicas"}),
    ],
)
def test_wrong_configurations_are_answered_with_the_change(arguments, changes, model, lengths, tmp_path, capsys):
    content = json.loads(MODEL.read_text())
    if "+experiment=qwen3_8b" not in arguments:  # 70B
        content |= {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
    (model / "config.json").write_text(json.dumps(content))
    file = tmp_path / "plan.json"
    command = ["plan", f"model.path={model}", *arguments, "--json", str(file), "--lengths", str(lengths)]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("memory: does not fit")
    memory = json.loads(file.read_text())["memory"]
    assert memory["fits"] is False
    assert all(any(change in found for found in memory["changes"]) for change in changes)


@pytest.mark.slow
def test_the_best_division_is_named_with_its_keys(model, lengths, tmp_path, capsys):
    file = tmp_path / "plan.json"
    fleet = ("cluster.gpus=8xh100", "data.train_batch_size=64", "actor.ppo_mini_batch_size=64")
    command = ["plan", "+experiment=qwen3_8b", f"model.path={model}", *fleet, "--lengths", str(lengths)]
    assert main([*command, "--json", str(file)]) == 0
    best, *others = json.loads(file.read_text())["divisions"]
    assert best["keys"] in capsys.readouterr().out
    assert best["why_not"] is None
    assert all(each["why_not"] for each in others)
    assert main([*command, *shlex.split(best["keys"]), "--json", str(file)]) == 0
    assert json.loads(file.read_text())["simulated"]["step_s"] == pytest.approx(best["step_s"], rel=0.01)


@pytest.mark.slow
def test_more_devices_than_there_are(model, lengths, tmp_path, capsys):
    arguments = ("+experiment=qwen3_8b", f"model.path={model}", "--gpus", "6xh100", "--lengths", str(lengths))
    assert main(["plan", *arguments, "data.train_batch_size=64", "actor.ppo_mini_batch_size=64"]) == 0
    found = capsys.readouterr().out
    assert "devices: not enough" in found
    assert "best division of 6xH100" in found


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "values",
    [
        {"rollout": {"engine": "sglang", "sglang": {"num_replicas": 10**9}}},
        {"data": {"train_batch_size": 10**9}},
        {"trainer": {"max_staleness": 10**9}},
        {"trainer": {"nnodes": 10**9}},
        {"actor": {"backend": "megatron", "megatron": {"pipeline_model_parallel_size": 10**9}}},
        {"rollout": {"n": "many"}},
        {},
    ],
)
@pytest.mark.parametrize("flag", ["--from", "--check"])
def test_a_hostile_run_is_refused_at_once(flag, values, tmp_path, capsys):
    save_model(tmp_path / "model", "qwen3")
    if not values:
        content = json.loads((tmp_path / "model/config.json").read_text())
        (tmp_path / "model/config.json").write_text(json.dumps(content | {"num_hidden_layers": 10**9}))
    config = {"model": {"path": str(tmp_path / "model")}, **values}
    run = saved_run(tmp_path / "run", config=config, learn=0.9, collect=0.7, step=1.6)
    assert main(["plan", flag, str(run), "--gpus", "cpu"]) == 2
    assert "agentrl: error: " in capsys.readouterr().err


def saved_with_servers(tmp_path, batch: int = 2):
    urls = {"urls": [f"http://{number}:1" for number in range(2)]}
    save_model(tmp_path / "model", "qwen3")
    values = {
        "model": {"path": str(tmp_path / "model")},
        "rollout": {"engine": "sglang", "sglang": urls, "n": 2},
        "data": {"train_batch_size": batch},
    }
    return saved_run(tmp_path / "run", config=values, learn=0.9, collect=0.7, step=1.6)


def test_speeds_of_a_run_are_fitted_to_servers_of_the_size_that_is_left_over(tmp_path, monkeypatch):
    seen = []

    def calibrated(measured, shape, hardware, config):
        seen.append(servers_of(config).tensor)
        return Calibration(hardware)

    monkeypatch.setattr(cli_plan, "calibrate", calibrated)
    assert main(["plan", "--from", str(saved_with_servers(tmp_path)), "--gpus", "9xh100"]) == 0
    assert seen == [4]


def test_speeds_are_not_fitted_to_servers_of_unknown_sizes(tmp_path, capsys):
    run = saved_with_servers(tmp_path)
    sizes = "rollout.sglang.server_args={tp_size: 1}"
    assert main(["plan", "--from", str(run), "--gpus", "4xh100", sizes]) == 0
    assert "not calibrated" in capsys.readouterr().out


def test_a_huge_run_is_refused_also_if_the_plan_is_small(tmp_path, capsys):
    run = saved_with_servers(tmp_path, batch=10**9)
    assert main(["plan", "--from", str(run), "--gpus", "3xh100", "data.train_batch_size=2"]) == 2
    assert "rollouts" in capsys.readouterr().err


@pytest.mark.slow
def test_a_picture_that_cannot_be_drawn_is_mentioned(model, lengths, tmp_path, capsys):
    arguments = ("+experiment=qwen3_8b", f"model.path={model}", "--gpus", "6xh100", "--lengths", str(lengths))
    small = ("data.train_batch_size=8", "rollout.n=2", "actor.ppo_mini_batch_size=8")
    assert main(["plan", *arguments, *small, "--picture", str(tmp_path / "plan.svg")]) == 0
    assert "plan.svg is not written" in capsys.readouterr().out
    assert not (tmp_path / "plan.svg").exists()


@pytest.mark.slow
def test_a_configuration_that_does_not_fit_is_not_compared_with_divisions(model, lengths, monkeypatch, capsys):
    seen: list[float | None] = []

    def lines(best, step_s):
        seen.append(step_s)
        return ()

    monkeypatch.setattr(cli_plan, "best_of", lambda *arguments: None)
    monkeypatch.setattr(cli_plan, "best_lines", lines)
    monkeypatch.setattr(cli_plan, "best_json", lambda best: [])
    arguments = ("+experiment=qwen3_8b", f"model.path={model}", "--gpus", "8xh100", "--lengths", str(lengths))
    small = ("data.train_batch_size=8", "rollout.n=2", "actor.ppo_mini_batch_size=8")
    assert main(["plan", *arguments, *small]) == 0
    assert main(["plan", *arguments, *small, "rollout.sglang.server_args.mem_fraction_static=0.1"]) == 0
    assert "if it fitted: " in capsys.readouterr().out
    assert [step_s is None for step_s in seen] == [False, True]


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_answer_takes_less_than_five_seconds(name, model):
    (model / "config.json").write_text((MODEL.parent / f"{name}.json").read_text())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["plan", f"+experiment={name}", f"model.path={model}", "--gpus", "h100"]
    subprocess.run([sys.executable, "-m", "agentrl", *command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_an_algorithm_without_rollouts_waits_for_none(model, tmp_path):
    file = tmp_path / "plan.json"
    command = ["plan", "+experiment=calculator_sft", f"model.path={model}", "--gpus", "h100", "--json", str(file)]
    assert main(command) == 0
    found = json.loads(file.read_text())
    assert (found["phases"]["rollout_s"], found["phases"]["publish_s"], found["simulated"]["trainer_idle"]) == (0, 0, 0)
    assert found["bottleneck"] == "learn"
    assert "divisions" not in found


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "calibrated"), [("cpu", True), ("h100", False)])
def test_speeds_of_a_run_are_those_of_its_hardware(gpus, calibrated, tmp_path, capsys):
    run = saved_run(tmp_path / "run", learn=0.9, collect=0.7, step=1.605)
    (run / "environment.json").write_text('{"devices": {"actor": "cpu"}}')
    save_model(tmp_path / "model", "qwen3")
    command = ["plan", "--from", str(run), f"model.path={tmp_path / 'model'}", "data.train_batch_size=2"]
    assert main([*command, "rollout.n=2", "--gpus", gpus]) == 0
    assert ("not calibrated" in capsys.readouterr().out) != calibrated


def test_a_run_whose_model_is_gone_is_checked_with_the_given_one(tmp_path, capsys):
    run = saved_run(tmp_path / "run", learn=0.9, collect=0.7, step=1.605)
    save_model(tmp_path / "model", "qwen3")
    sizes = ("data.train_batch_size=2", "rollout.n=2", "--gpus", "cpu")
    assert main(["plan", "--check", str(run), *sizes]) == 2
    assert "model.path=FOLDER" in capsys.readouterr().err
    assert main(["plan", "--check", str(run), f"model.path={tmp_path / 'model'}", *sizes]) == 0
    assert "learn" in capsys.readouterr().out
