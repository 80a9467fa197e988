"""Runs of the Megatron backend, also with Ray and SGLang: equal to the torch backend's, resumed, and audited."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from sglang_server import require_sglang
from test_several_devices import MOST_APART, ROOT, command, metrics, passes_audit, steps_of
from test_several_nodes import cluster  # noqa: F401  (fixture)

pytestmark = pytest.mark.megatron

LAYOUTS = {
    "one process": [],
    "tensor parallel": ["trainer.n_gpus_per_node=2", "actor.megatron.tensor_model_parallel_size=2"],
    "pipeline": [
        *("trainer.n_gpus_per_node=2", "actor.megatron.pipeline_model_parallel_size=2"),
        "actor.share_prefixes=false",
    ],
}
PLACES = {
    "two nodes": ["trainer.nnodes=2", "actor.megatron.tensor_model_parallel_size=2"],
    "one node": LAYOUTS["pipeline"],
}
SERVED = {
    "tensor parallel": LAYOUTS["tensor parallel"],
    "pipeline": LAYOUTS["pipeline"],
    "experts": [
        "trainer.n_gpus_per_node=2",
        "actor.megatron.expert_model_parallel_size=2",
        "rollout.routed_experts=true",
    ],
    "delta": [*LAYOUTS["tensor parallel"], "rollout.weight_sync=delta"],
    "delta of a pipeline": [*LAYOUTS["pipeline"], "rollout.weight_sync=delta"],
    "process group": [*LAYOUTS["tensor parallel"], "rollout.sglang.weight_transfer=group"],
    "process group of a pipeline": [*LAYOUTS["pipeline"], "rollout.sglang.weight_transfer=group"],
}
DEEPSEEK = {
    "tensor and expert parallel": ["tensor_model_parallel_size=2", "expert_tensor_parallel_size=1"],
    "pipeline and expert parallel": ["pipeline_model_parallel_size=2"],
}


RESUMED = ("actor.backend=megatron", "trainer.resume_mode=auto", "actor.share_prefixes=false")
ONE_STEP = ("trainer.total_training_steps=1", "actor.share_prefixes=false", "algorithm.adv_estimator=grpo")


def train(task_folder: Path, out: Path, *overrides: str, env: dict[str, str] | None = None) -> None:
    options = ["actor.entropy_coeff=0.01", "actor.optim.total_updates=4"]
    subprocess.run(command(task_folder, out, *options, *overrides), cwd=ROOT, check=True, timeout=900, env=env)


@pytest.fixture(scope="module")
def expected(task_folder, tmp_path_factory) -> dict[int, dict[str, float]]:
    out = tmp_path_factory.mktemp("torch")
    train(task_folder, out, "actor.backend=torch")
    return metrics(out)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_is_that_of_the_torch_backend(task_folder, tmp_path, expected, name):
    train(task_folder, tmp_path, "actor.backend=megatron", *LAYOUTS[name])
    check_run(tmp_path, expected)


def check_run(out: Path, expected: dict[int, dict[str, float]]) -> None:
    found = metrics(out)
    assert sorted(found) == [1, 2, 3, 4]
    assert found[1]["actor/grad_norm"] > 0
    for metric in ("actor/loss", "actor/grad_norm", "actor/lr", "actor/num_tokens"):
        assert found[1][metric] == pytest.approx(expected[1][metric], rel=1e-4, abs=1e-6), metric
    assert passes_audit(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_a_run_on_a_ray_cluster_is_that_of_the_torch_backend(cluster, task_folder, tmp_path, expected, name):  # noqa: F811
    options = ["actor.backend=megatron", f"cluster.address={cluster.address}", *PLACES[name]]
    train(task_folder, tmp_path, *options, env=cluster.env)
    check_run(tmp_path, expected)


@pytest.mark.slow
@pytest.mark.sglang
def test_a_server_samples_for_two_nodes(cluster, task_folder, tmp_path):  # noqa: F811
    """After each publication the server's log-probabilities are those of the policy, of which each node has a part."""
    require_sglang()
    options = ["rollout.engine=sglang", "rollout.dtype=float32", f"cluster.address={cluster.address}"]
    train(task_folder, tmp_path, "actor.backend=megatron", *options, *PLACES["two nodes"], env=cluster.env)
    check_served(tmp_path)


@pytest.mark.slow
@pytest.mark.sglang
@pytest.mark.parametrize("name", SERVED)
def test_a_server_samples_for_a_layout(make_task, tmp_path, name):
    """Mixtures of experts are trained with the experts that sampled."""
    require_sglang()
    make_task(tmp_path / "task", 0, "qwen3_moe" if name == "experts" else "qwen3")
    options = ["rollout.engine=sglang", "rollout.dtype=float32"]
    train(tmp_path / "task", tmp_path / "run", "actor.backend=megatron", *options, *SERVED[name])
    check_served(tmp_path / "run")
    if name == "experts":
        assert all(row["actor/replayed_share"] > 0.99 for row in metrics(tmp_path / "run").values())
    if name.startswith("delta"):
        assert all(0 < row["engine/weight_changed_share"] <= 1 for row in metrics(tmp_path / "run").values())


def check_served(out: Path) -> None:
    steps = metrics(out)
    assert sorted(steps) == [1, 2, 3, 4]
    assert all(row["actor/grad_norm"] > 0 for row in steps.values())
    for metric in ("publish/probe_max_diff", "mismatch/max"):
        assert max(row[metric] for row in steps.values()) < MOST_APART, metric
    assert passes_audit(out)


@pytest.fixture(scope="module")
def uninterrupted(task_folder, tmp_path_factory) -> dict[int, dict[str, float]]:
    out = tmp_path_factory.mktemp("uninterrupted")
    train(task_folder, out, *RESUMED, *LAYOUTS["tensor parallel"])
    return steps_of(out)


@pytest.fixture(scope="module")
def two_steps(task_folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("interrupted")
    train(task_folder, out, *RESUMED, *LAYOUTS["tensor parallel"], "trainer.total_training_steps=2")
    return out


def test_a_resumed_run_repeats_its_steps_bit_for_bit(task_folder, tmp_path, uninterrupted, two_steps):
    out = shutil.copytree(two_steps, tmp_path / "run", symlinks=True)
    train(task_folder, out, *RESUMED, *LAYOUTS["tensor parallel"])
    assert steps_of(out) == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pipeline", "one process"])
def test_a_resumed_run_goes_on_in_another_layout(task_folder, tmp_path, uninterrupted, two_steps, name):
    out = shutil.copytree(two_steps, tmp_path / "run", symlinks=True)
    train(task_folder, out, *RESUMED, *LAYOUTS[name])
    found = steps_of(out)
    assert sorted(found) == [1, 2, 3, 4]
    for metric, value in uninterrupted[3].items():
        assert found[3][metric] == pytest.approx(value, rel=1e-4, abs=1e-6), metric
    assert passes_audit(out)


@pytest.fixture(scope="module")
def deepseek(make_task, tmp_path_factory) -> tuple[Path, dict[int, dict[str, float]]]:
    """The task for a tiny DeepSeek-V3, and a step of the torch backend in one process."""
    folder, out = tmp_path_factory.mktemp("task"), tmp_path_factory.mktemp("torch")
    make_task(folder, 0, "deepseek_v3")
    train(folder, out, *ONE_STEP, "actor.backend=torch")
    return folder, metrics(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEPSEEK)
def test_a_step_of_deepseek_on_four_processes_is_that_of_the_torch_backend(deepseek, tmp_path, name):
    folder, expected = deepseek
    layout = [f"actor.megatron.{option}" for option in ("expert_model_parallel_size=2", *DEEPSEEK[name])]
    train(folder, tmp_path, *ONE_STEP, "actor.backend=megatron", "trainer.n_gpus_per_node=4", *layout)
    found = metrics(tmp_path)
    assert found[1]["actor/grad_norm"] > 0
    for metric in ("actor/loss", "actor/grad_norm", "actor/lr", "actor/num_tokens"):
        assert found[1][metric] == pytest.approx(expected[1][metric], rel=1e-4, abs=1e-6), metric
    assert passes_audit(tmp_path)
