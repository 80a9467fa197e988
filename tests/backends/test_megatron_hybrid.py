"""`actor.megatron.hybrid_model`: megatron-core's `HybridModel` in place of its `GPTModel`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_models import layout_of, make_request
from tiny_models import make_samples, save_model, with_returns

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.algos.losses.value import ValueLoss
from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.errors import ConfigError

pytestmark = pytest.mark.megatron


def trained(ranks: Ranks, path: Path, **layout: object) -> tuple[object, list[list[float]], dict[str, torch.Tensor]]:
    """The first chunk of rank 0, scores, and weights after a step."""
    return trained_with(ranks, make_request(path, megatron=layout))


def trained_with(ranks: Ranks, request: ModelRequest) -> tuple[object, list[list[float]], dict[str, torch.Tensor]]:
    backend = MegatronBackend(ranks, request, seed=0)
    chunk = backend._model.passes.chunks[0].module
    samples = with_returns(make_samples(5))
    scores = asyncio.run(backend.score(samples))
    loss = ValueLoss(cliprange_value=10) if request.value_head else PolicyLoss("vanilla")
    asyncio.run(backend.train_step(samples, loss))
    weights = {name: value.clone() for name, value in backend.weights()}
    asyncio.run(backend.close())
    return chunk, scores.values or scores.logprobs, weights


OPTIONS: dict[str, dict[str, object]] = {
    "bridge": {},
    "critic": {},
    "lora": {"model": {"lora_rank": 4, "target_modules": ["o_proj"]}},
    "frozen": {"freeze_modules": ["model.layers.0"]},
    "muon": {"optim": {"name": "muon", "lr": 1e-2}},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_hybrid_model_has_every_option_of_a_gpt_model(ranks, tmp_path, name, family):
    path = save_model(tmp_path, family)
    layout = layout_of("pp2") | ({"use_mbridge": True} if name == "bridge" else {})
    (_, *gpt), (chunk, *hybrid) = (
        trained_with(ranks, replace(request, value_head=name == "critic"))
        for kind in (False, True)
        for request in [make_request(path, megatron={**layout, "hybrid_model": kind}, **OPTIONS[name])]
    )
    assert type(chunk).__name__ == "HybridChunk"
    assert gpt[0] == hybrid[0]
    assert gpt[1].keys() == hybrid[1].keys()
    assert all(torch.equal(gpt[1][key], value) for key, value in hybrid[1].items())


def test_a_model_that_needs_the_bridge_has_no_hybrid_model(ranks, tmp_path):
    path = save_model(tmp_path, "gemma")
    with pytest.raises(ConfigError, match=r"hybrid_model=true' does not work with a model of type 'gemma'"):
        MegatronBackend(ranks, make_request(path, megatron={"hybrid_model": True}), seed=0)


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3"])
def test_a_hybrid_model_equals_a_gpt_model_to_the_bit(ranks, tmp_path, family):
    path = save_model(tmp_path, family)
    layout = layout_of("tp2")
    (gpt, scores, weights), (hybrid, own_scores, own_weights) = (
        trained(ranks, path, **layout, hybrid_model=kind) for kind in (False, True)
    )
    assert [type(chunk).__name__ for chunk in (gpt, hybrid)] == ["GPTModel", "HybridChunk"]
    assert scores == own_scores
    assert weights.keys() == own_weights.keys()
    assert all(torch.equal(weights[name], value) for name, value in own_weights.items())


@pytest.mark.parametrize(
    ("family", "num_layers", "layout", "pattern"),
    [
        ("qwen3", 4, {}, "*-*-|*-*-"),
        ("qwen3", 4, {"num_layers_in_last_pipeline_stage": 1}, "*-*-*-|*-"),
        ("qwen3", 4, {"virtual_pipeline_model_parallel_size": 2}, "*-|*-|*-|*-"),
        ("deepseek_v3", 2, {}, "+-|+E"),
    ],
)
def test_the_stages_have_the_layers_of_a_gpt_model(ranks, tmp_path, family, num_layers, layout, pattern):
    path = save_model(tmp_path, family, num_hidden_layers=num_layers)
    chunk, *own = trained(ranks, path, **layout_of("pp2"), **layout, hybrid_model=True)
    assert chunk.hybrid_layer_pattern == pattern
    _, *expected = trained(ranks, path, **layout_of("pp2"), **layout)
    assert own[0] == expected[0]
    assert all(torch.equal(own[1][name], value) for name, value in expected[1].items())
