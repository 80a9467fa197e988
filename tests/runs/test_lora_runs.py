"""Complete runs with LoRA, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentrl.cli.main import main

ROOT = Path(__file__).parents[2]
LORA = [
    "model.lora_rank=4",
    "model.lora_alpha=8",
    "actor.optim.lr=1e-2",
    "actor.use_kl_loss=true",
    "actor.entropy_coeff=0.1",
]
"""The entropy bonus changes a policy of random weights, whose rewards are all 0."""


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiments' paths are relative to ROOT


def run(command: str, task_folder: Path, folder: Path, *overrides: str) -> int:
    options = [
        f"model.path={task_folder}/model",
        f"data.train_files={task_folder}/train.jsonl",
        f"data.val_files={task_folder}/val.jsonl",
        "data.val_max_samples=4",
        "data.train_batch_size=4",
        "data.max_response_length=48",
        "rollout.n=2",
        "trainer.test_freq=0",
        "trainer.stop_when=null",
        "trainer.val_before_train=false",
        "trainer.logger=[jsonl]",
        f"trainer.default_local_dir={folder}",
        "trainer.resume_mode=auto",
    ]
    return main([command, "+experiment=calculator", *options, *overrides])


def adapter(folder: Path) -> dict[str, list[float]]:
    file = folder / "checkpoints/latest/adapter_model.safetensors"
    return {name: value.tolist() for name, value in load_file(file).items()}


@pytest.mark.slow
def test_lora_run_resumes_bitwise_and_its_adapter_is_evaluated_and_exported(task_folder, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder, num_steps in ((whole, 2), (halves, 1), (halves, 2)):
        length = f"trainer.total_training_steps={num_steps}"
        assert run("train", task_folder, folder, length, "actor.optim.total_updates=2", *LORA) == 0
    assert adapter(whole) == adapter(halves)
    assert any(any(map(any, value)) for name, value in adapter(whole).items() if ".lora_B." in name)
    assert not list((whole / "checkpoints/latest").glob("model*.safetensors"))

    assert main(["export", str(whole), str(tmp_path / "exported")]) == 0
    figures = []
    for name, model in (("adapter", whole / "checkpoints/latest"), ("exported", tmp_path / "exported")):
        assert run("eval", task_folder, tmp_path / name, f"model.path={model}") == 0
        figures.append(json.loads((tmp_path / name / "eval.json").read_text()))
    assert figures[0]["val/success"] == figures[1]["val/success"]
    assert (tmp_path / "exported/chat_template.jinja").read_text()


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["model.lora_alpha=3"], "'model.lora_alpha' has no effect without 'model.lora_rank' above 0"),
        (["model.target_modules=q_proj"], "'model.target_modules' has no effect without 'model.lora_rank' above 0"),
        (["model.lora_adapter_path=a", "model.exclude_modules=q"], "no effect without a new adapter"),
        (["model.lora_adapter_path=a"], "model.lora_adapter_path: there is no adapter_config.json in 'a'"),
        (["actor.freeze_modules=model.leyers.0"], "the nearest name is 'model.layers.0'"),
        (["model.lora_rank=2", "model.target_modules=q_projj"], "did you mean 'q_proj'?"),
    ],
)
def test_options_that_cannot_work_are_refused(task_folder, tmp_path, capsys, overrides, complaint):
    assert run("train", task_folder, tmp_path, *overrides) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
