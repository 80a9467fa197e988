"""Runs of several updates per step on a mixture of experts, with the experts that the policy recorded (R2)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from test_several_devices import ROOT, command, metrics, passes_audit

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

UPDATES = (
    *("trainer.total_training_steps=2", "actor.ppo_mini_batch_size=1", "actor.optim.lr=0.03"),
    *("algorithm.rollout_correction.bypass_mode=false", "algorithm.adv_estimator=grpo", "actor.entropy_coeff=0.01"),
)


@pytest.fixture(scope="module")
def mixture(make_task, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    make_task(folder, 0, "qwen3_moe")
    return folder


def train(task: Path, out: Path, *options: str) -> dict[int, dict[str, float]]:
    subprocess.run(command(task, out, *UPDATES, *options), cwd=ROOT, check=True, timeout=900)
    assert passes_audit(out)
    found = metrics(out)
    assert sorted(found) == [1, 2]
    return found


@pytest.fixture(scope="module")
def alone(mixture, tmp_path_factory) -> dict[int, dict[str, float]]:
    return train(mixture, tmp_path_factory.mktemp("alone"), "actor.routed_experts=true")


def check_equal(found: dict[int, dict[str, float]], expected: dict[int, dict[str, float]]) -> None:
    for metric in ("actor/loss", "actor/grad_norm", "actor/num_tokens"):
        assert found[1][metric] == pytest.approx(expected[1][metric], rel=1e-4, abs=1e-6), metric
    assert all(row["actor/replayed_share"] == 1.0 for row in found.values())


def test_later_updates_of_a_step_replay_the_experts_of_its_start(mixture, alone, tmp_path):
    check_equal(alone, alone)
    free = train(mixture, tmp_path, "actor.routed_experts=false")
    assert "actor/replayed_share" not in free[1]
    assert free[1]["actor/num_tokens"] == alone[1]["actor/num_tokens"]
    assert free[1]["actor/grad_norm"] != pytest.approx(alone[1]["actor/grad_norm"], rel=1e-3)


@pytest.mark.nightly
def test_a_run_on_two_processes_is_the_run_on_one(mixture, alone, tmp_path):
    check_equal(train(mixture, tmp_path, "actor.routed_experts=true", "trainer.n_gpus_per_node=2"), alone)


@pytest.mark.megatron
@pytest.mark.parametrize("layout", ["expert_model_parallel_size=2", "pipeline_model_parallel_size=2"])
def test_a_run_in_a_layout_is_that_of_the_torch_backend(mixture, alone, tmp_path, layout):
    options = ("actor.backend=megatron", "trainer.n_gpus_per_node=2", f"actor.megatron.{layout}")
    shares = f"actor.share_prefixes={'pipeline' not in layout}"
    check_equal(train(mixture, tmp_path, "actor.routed_experts=true", *options, shares), alone)
