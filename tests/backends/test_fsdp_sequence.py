"""Ranks that compute slices of the same samples train like one process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_fsdp import accumulated, in_one_process, make_request, ten_steps
from tiny_models import make_groups, make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.algos.losses.value import ValueLoss
from agentrl.backends.fsdp.assignment import assign
from agentrl.backends.fsdp.backend import FsdpBackend
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.fsdp.sequence import check_sequence
from agentrl.backends.torch.batches import micro_batch
from agentrl.backends.torch.gradients import accumulate_gradients, mini_batch
from agentrl.errors import ConfigError
from agentrl.types.sample import Sample

LOSSES = {"row": PolicyLoss("vanilla"), "rollout": PolicyLoss("gmpo"), "batch": PolicyLoss("kl_cov")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save_model(tmp_path_factory.mktemp(name), name) for name in ("qwen3", "qwen3_moe", "llama")}


def divided(path: Path, size: int = 2, **options):
    return make_request(path, ulysses_sequence_parallel_size=size, **options)


def check_gradients(ranks: Ranks, path: Path, loss, samples: list[Sample], size: int = 2) -> None:
    backend, alone = FsdpBackend(ranks, divided(path, size), seed=0), in_one_process(make_request(path))
    batch, parts = mini_batch(samples, loss), assign(samples, ranks.size // size, loss.scope)
    found = backend._each_group(accumulated, [(backend._number, batch, own, loss) for own in parts])[0]
    with alone._positionwise.running():
        accumulate_gradients(alone._positionwise, batch, loss, alone._cut(samples))
    expected = {name: value.grad for name, value in alone.model.named_parameters() if value.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 2e-6 * gradient.norm() + 1e-9, name
    asyncio.run(backend.close())


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "llama"])
def test_every_gradient_equals_that_of_one_process(ranks, folders, family, loss):
    check_gradients(ranks, folders[family], LOSSES[loss], make_samples(7), ranks.size)


CASES = {
    "plain": ("qwen3", {}),
    "experts": ("qwen3_moe", {}),
    "lora": ("llama", {"model": {"lora_rank": 4, "lora_alpha": 32}}),
    "critic": ("llama", {"value_head": True}),
    "gradient checkpointing": ("qwen3", {"model": {"enable_gradient_checkpointing": True}}),
}


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_ten_steps_equal_those_of_one_process(ranks, folders, case):
    family, options = CASES[case]
    request, whole = divided(folders[family], ranks.size, **options), make_request(folders[family], **options)
    loss = ValueLoss(0.5, "token-mean", 10) if request.value_head else PolicyLoss("vanilla")
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(whole)
    for found, expected in zip(ten_steps(backend, loss), ten_steps(alone, loss), strict=True):
        for name in ("loss", "grad_norm", "lr", "num_tokens", "num_micro_batches"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    weights = dict(backend.weights())
    for name, value in alone.weights():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    asyncio.run(backend.close())


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_samples", [1, 2, 5])
def test_scores_equal_those_of_one_process(ranks, folders, num_samples):
    backend = FsdpBackend(ranks, divided(folders["llama"], ranks.size), seed=0)
    alone = in_one_process(make_request(folders["llama"]))
    for samples in (make_samples(num_samples), make_groups()):
        found, expected = (asyncio.run(each.score(samples)) for each in (backend, alone))
        for own, other in zip(found.logprobs + found.entropy, expected.logprobs + expected.entropy, strict=True):
            assert own == pytest.approx(other, abs=1e-5)
    asyncio.run(backend.close())


def saved_bytes(ranks: Ranks, number: int, sample: Sample) -> int:
    """Bytes that a forward pass keeps for the backward pass, without the weights."""
    model = ranks.held[number]._positionwise
    kept: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        if len(sample.token_ids) // ranks.size - 1 in value.shape or max(value.shape, default=0) > 100:
            kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with model.running(), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        outputs = model.outputs(micro_batch([sample], model.device), entropy_gradient=False)
        outputs["logprobs"].sum().backward()
    return sum(kept.values())


@pytest.mark.slow
def test_memory_of_activations_falls_with_the_number_of_ranks(ranks, folders):
    length = 1200
    zeros, ones = [0.0] * length, [1.0] * length
    sample = Sample([index % 60 for index in range(length)], [0] * (length - 8) + [1] * 8, ones, zeros)
    found = []
    for size in (1, ranks.size):
        backend = FsdpBackend(ranks, divided(folders["llama"], size), seed=0)
        found.append(max(backend._ranks.each(saved_bytes, [(backend._number, sample)] * ranks.size)))
        asyncio.run(backend.close())
    assert found[1] <= 1.15 / ranks.size * found[0]


@pytest.mark.slow
def test_heads_that_cannot_be_divided_and_padded_rows_are_refused(ranks, folders):
    model = FsdpBackend(ranks, make_request(folders["llama"]), seed=0)
    padded = FsdpBackend(ranks, make_request(folders["llama"], share_prefixes=False), seed=0)
    for each, size in ((model, 3), (padded, 2)):
        with pytest.raises(ConfigError, match="ulysses_sequence_parallel_size"):
            check_sequence(each._model._positionwise, size)
        asyncio.run(each.close())


@pytest.mark.skipif(os.environ.get("RANKS_OF_TESTS") != "4", reason="needs two groups of two ranks")
def test_two_groups_of_two_ranks_have_the_gradients_of_one_process(ranks, folders):
    check_gradients(ranks, folders["llama"], LOSSES["rollout"], make_samples(7), 2)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the four ranks")
def test_two_groups_of_two_ranks_pass():
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", "-k", "two_groups or lora or memory", __file__]
    done = subprocess.run(command, env={**os.environ, "RANKS_OF_TESTS": "4"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
