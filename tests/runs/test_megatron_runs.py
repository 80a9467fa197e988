"""Runs of the Megatron backend equal runs of the torch backend, resume, and pass the audit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from test_several_devices import AGENTRL, ROOT, command, metrics, passes_audit, steps_of

pytestmark = pytest.mark.megatron

LAYOUTS = {
    "one process": [],
    "tensor parallel": ["trainer.n_gpus_per_node=2", "actor.megatron.tensor_model_parallel_size=2"],
    "pipeline": ["trainer.n_gpus_per_node=2", "actor.megatron.pipeline_model_parallel_size=2"],
}


Train = Callable[..., None]


@pytest.fixture(scope="module")
def train(agentrl, task_folder) -> Train:
    """Trains in a folder."""

    def run(out: Path, *overrides: str, agentrl: Sequence[str] = agentrl) -> None:
        options = ["actor.entropy_coeff=0.01", "actor.optim.total_updates=4", *overrides]
        subprocess.run(command(task_folder, out, *options, agentrl=agentrl), cwd=ROOT, check=True, timeout=500)

    return run


@pytest.fixture(scope="module")
def expected(train, tmp_path_factory) -> dict[int, dict[str, float]]:
    out = tmp_path_factory.mktemp("torch")
    train(out, "actor.backend=torch")
    return metrics(out)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_is_that_of_the_torch_backend(agentrl, train, tmp_path, expected, name):
    train(tmp_path, "actor.backend=megatron", *LAYOUTS[name], agentrl=AGENTRL if name == "pipeline" else agentrl)
    found = metrics(tmp_path)
    assert sorted(found) == [1, 2, 3, 4]
    assert found[1]["actor/grad_norm"] > 0
    for metric in ("actor/loss", "actor/grad_norm", "actor/lr", "actor/num_tokens"):
        assert found[1][metric] == pytest.approx(expected[1][metric], rel=1e-4, abs=1e-6), metric
    assert passes_audit(tmp_path, agentrl)


def test_a_resumed_run_repeats_its_steps_bit_for_bit(train, tmp_path):
    options = ["actor.backend=megatron", *LAYOUTS["tensor parallel"], "trainer.resume_mode=auto"]
    train(tmp_path / "whole", *options)
    train(tmp_path / "parts", *options, "trainer.total_training_steps=2")
    train(tmp_path / "parts", *options)
    assert steps_of(tmp_path / "parts") == steps_of(tmp_path / "whole")
