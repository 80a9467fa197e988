"""Training in a parallel layout equals training in one process with the torch backend."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch
from megatron_models import expected_gradients, gradients, in_one_process, make_request
from tiny_models import make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.megatron.backend import MegatronBackend

pytestmark = pytest.mark.megatron

DENSE, EXPERTS = ("qwen3", "llama", "qwen2"), ("qwen3_moe", "deepseek_v3")
LAYOUTS = {
    1: {"": (*DENSE, *EXPERTS)},
    2: {
        "tp2": (*DENSE, *EXPERTS),
        "tp2 without_sp": DENSE,
        "pp2": ("qwen3", "llama", *EXPERTS),
        "cp2": ("qwen3", *EXPERTS),
        "ep2": EXPERTS,
        "ep2 allgather": EXPERTS,
        "dp": ("qwen3", *EXPERTS),
        "dp replicated": ("qwen3", "qwen3_moe"),
        "tp2 ep2 etp1": EXPERTS,
    },
    4: {
        "tp2 pp2": ("qwen3", *EXPERTS),
        "tp2 ep2 etp1": EXPERTS,
        "pp2 ep2": EXPERTS,
        "tp2 cp2": ("qwen3", *EXPERTS),
        "pp2 cp2": ("qwen3", *EXPERTS),
        "tp2 dp": ("qwen3",),
        "tp4": ("deepseek_v3",),
    },
}
NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))
CASES = [f"{family}: {layout}" for layout, families in LAYOUTS[NUM_RANKS].items() for family in families]
LOSSES = {
    "row": PolicyLoss("vanilla"),
    "rollout": PolicyLoss("gmpo"),
    "batch": PolicyLoss("kl_cov"),
    "sequence mean": PolicyLoss("vanilla", aggregation="seq-mean-token-mean"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save_model(tmp_path_factory.mktemp(name), name) for name in (*DENSE, *EXPERTS)}


def started(ranks, folders, case: str, **options):
    family, layout = case.split(": ")
    request = make_request(folders[family], layout, **options)
    return MegatronBackend(ranks, request, seed=0), in_one_process(request)


def assert_equal_gradients(found, expected):
    assert found.keys() >= expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 2e-6 * gradient.norm() + 1e-9, name


@pytest.mark.parametrize("case", CASES)
def test_scores_gradients_and_weights_equal_those_of_one_process(ranks, folders, case):
    backend, alone = started(ranks, folders, case)
    samples = make_samples(7)
    weights = dict(backend.weights())
    for name, value in alone.weights():
        assert torch.equal(weights[name], value), name
    found, expected = (asyncio.run(each.score(samples)) for each in (backend, alone))
    for own, theirs in zip([*found.logprobs, *found.entropy], [*expected.logprobs, *expected.entropy], strict=True):
        assert own == pytest.approx(theirs, abs=4e-6)
    loss = PolicyLoss("vanilla")
    assert_equal_gradients(gradients(backend, samples, loss), expected_gradients(alone, samples, loss))
    asyncio.run(backend.close())
