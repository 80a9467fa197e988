"""Samples with common prefixes: scores and gradients equal those of one process that computes each sample alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from megatron_models import (
    VARIANTS,
    assert_equal_gradients,
    expected_gradients,
    gradients,
    in_one_process,
    make_request,
    save_variant,
)
from rank_processes import NUM_RANKS, ROUNDING
from tiny_models import make_groups, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.backends.packing import num_common, sorted_by_prefix, token_keys
from agentrl.backends.torch.backend import TorchBackend
from agentrl.backends.torch.batches import micro_batch
from agentrl.types.sample import Sample

pytestmark = pytest.mark.megatron

LAYOUTS = {
    1: {"": ("qwen3", "llama3", "qwen3_moe", "deepseek_v3", "glm4_moe"), "hybrid": ("qwen3",)},
    2: {
        "tp2": ("qwen3", "qwen2", "llama3", "qwen3_moe", "deepseek_v3", "glm4_moe"),
        "tp2 without_sp": ("llama",),
        "tp2 hybrid": ("qwen3", "yarn"),
        "ep2": ("qwen3_moe", "deepseek_v3"),
        "ep2 allgather": ("qwen3_moe", "deepseek_v3"),
        "dp": ("qwen3", "published yarn"),
        "dp replicated": ("qwen3_moe",),
        "tp2 ep2 etp1": ("qwen3_moe", "deepseek_v3"),
    },
    4: {
        "tp2 ep2 etp1": ("qwen3_moe", "deepseek_v3"),
        "tp2 dp": ("qwen3",),
        "ep2 dp": ("glm4_moe",),
        "tp4": ("deepseek_v3",),
    },
}[NUM_RANKS]
CASES = [f"{layout}: {family}" for layout, families in LAYOUTS.items() for family in families]
OTHER_LAYOUTS = {1: ("",), 2: ("tp2", "ep2", "dp"), 4: ("tp2 ep2 etp1",)}[NUM_RANKS]
LOSS = PolicyLoss("vanilla")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory):
    def folder(family: str) -> Path:
        path = tmp_path_factory.mktemp("model")
        return save_variant(path, family) if family in VARIANTS else save_model(path, family)

    return folder


@contextmanager
def both(ranks: Ranks, request: ModelRequest) -> Iterator[tuple[MegatronBackend, TorchBackend]]:
    """A model that shares prefixes in a layout, and one in one process that does not."""
    shares = request.actor.model_copy(update={"share_prefixes": True})
    backend = MegatronBackend(ranks, replace(request, actor=shares), seed=0)
    try:
        yield backend, in_one_process(request)
    finally:
        asyncio.run(backend.close())


def assert_equal(backend: MegatronBackend, alone: TorchBackend, samples: list[Sample]) -> None:
    found, expected = (asyncio.run(each.score(samples)) for each in (backend, alone))
    for own, theirs in zip([*found.logprobs, *found.entropy], [*expected.logprobs, *expected.entropy], strict=True):
        assert own == pytest.approx(theirs, abs=2 * ROUNDING)
    assert_equal_gradients(gradients(backend, samples, LOSS), expected_gradients(alone, samples, LOSS))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES)
def test_shared_prefixes_do_not_change_scores_and_gradients(ranks, folder_of, case):
    layout, family = case.split(": ")
    request = make_request(folder_of(family), layout, ppo_micro_batch_size_per_gpu=3)
    with both(ranks, request) as (backend, alone):
        assert_equal(backend, alone, make_groups())


@pytest.mark.parametrize("recompute", [{"recompute_granularity": "full"}, {"recompute_granularity": "selective"}])
@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3"])
def test_recomputed_layers_have_the_positions_of_their_micro_batch(ranks, folder_of, family, recompute):
    request = make_request(folder_of(family), ppo_micro_batch_size_per_gpu=3, megatron=recompute)
    with both(ranks, request) as (backend, alone):
        assert_equal(backend, alone, make_groups())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_samples_share_a_prefix_only_if_its_experts_are_equal(ranks, folder_of, family, layout):
    request = replace(make_request(folder_of(family), layout, ppo_micro_batch_size_per_gpu=4), routed_by="rollout")
    with both(ranks, request) as (backend, alone):
        assert_equal(backend, alone, with_experts(make_groups(), alone.model.config))


def with_experts(samples: list[Sample], config) -> list[Sample]:
    """Recorded experts that depend on the token; every fifth sample has others, and every fourth none."""
    num_experts = getattr(config, "num_experts", None) or config.n_routed_experts
    shape = (config.vocab_size, config.num_hidden_layers, num_experts)
    chosen = torch.rand(shape, generator=torch.Generator().manual_seed(0)).topk(config.num_experts_per_tok).indices
    found = []
    for number, sample in enumerate(samples):
        experts = (chosen[torch.tensor(sample.token_ids)] + number // 5) % num_experts
        found.append(sample if number % 4 == 3 else replace(sample, routed_experts=experts.to(torch.uint8)))
    return found


@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_a_prefix_is_computed_once(ranks, folder_of, layout):
    request = make_request(folder_of("qwen3_moe"), layout)
    samples = make_groups()
    keys = [token_keys(sample) for sample in samples]
    order = sorted_by_prefix(keys)
    shared = sum(num_common(keys[one], keys[other]) for one, other in pairwise(order))
    num_tokens = sum(map(len, keys)) - shared
    with both(ranks, request) as (backend, _):
        (packed,) = backend._model.passes._packed([micro_batch(samples, torch.device("cpu"))])
    assert shared > 0
    assert packed.token_ids.shape[1] == num_tokens + (num_tokens % 2 if "tp2" in layout else 0)
