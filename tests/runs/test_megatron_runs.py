"""Runs of the Megatron backend equal runs of the torch backend, resume, and pass the audit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from test_several_devices import ROOT, command, metrics, passes_audit, steps_of

pytestmark = pytest.mark.megatron

LAYOUTS = {
    "one process": [],
    "tensor parallel": ["trainer.n_gpus_per_node=2", "actor.megatron.tensor_model_parallel_size=2"],
    "pipeline": [
        *("trainer.n_gpus_per_node=2", "actor.megatron.pipeline_model_parallel_size=2"),
        "actor.share_prefixes=false",
    ],
}


def train(task_folder: Path, out: Path, *overrides: str) -> None:
    options = ["actor.entropy_coeff=0.01", "actor.optim.total_updates=4"]
    subprocess.run(command(task_folder, out, *options, *overrides), cwd=ROOT, check=True, timeout=500)


@pytest.fixture(scope="module")
def expected(task_folder, tmp_path_factory) -> dict[int, dict[str, float]]:
    out = tmp_path_factory.mktemp("torch")
    train(task_folder, out, "actor.backend=torch")
    return metrics(out)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_is_that_of_the_torch_backend(task_folder, tmp_path, expected, name):
    train(task_folder, tmp_path, "actor.backend=megatron", *LAYOUTS[name])
    found = metrics(tmp_path)
    assert sorted(found) == [1, 2, 3, 4]
    assert found[1]["actor/grad_norm"] > 0
    for metric in ("actor/loss", "actor/grad_norm", "actor/lr", "actor/num_tokens"):
        assert found[1][metric] == pytest.approx(expected[1][metric], rel=1e-4, abs=1e-6), metric
    assert passes_audit(tmp_path)


def test_a_resumed_run_repeats_its_steps_bit_for_bit(task_folder, tmp_path):
    options = ["actor.backend=megatron", *LAYOUTS["tensor parallel"], "trainer.resume_mode=auto"]
    train(task_folder, tmp_path / "whole", *options)
    train(task_folder, tmp_path / "parts", *options, "trainer.total_training_steps=2")
    train(task_folder, tmp_path / "parts", *options)
    assert steps_of(tmp_path / "parts") == steps_of(tmp_path / "whole")
