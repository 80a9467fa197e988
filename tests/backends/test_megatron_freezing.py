"""Frozen weights in a parallel layout: the others are trained as in one process."""

from __future__ import annotations

import asyncio

import pytest
import torch
from megatron_models import (
    assert_equal_gradients,
    expected_gradients,
    gradients,
    in_one_process,
    make_request,
)
from test_megatron import LAYOUTS_OF_STEPS, OTHER_LAYOUTS
from tiny_models import make_samples, save_model
from transformers import AutoModelForCausalLM

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.errors import ConfigError

pytestmark = pytest.mark.megatron

LOSS = PolicyLoss("vanilla")
PARTS = {
    "first stage": ["model.embed_tokens", "model.layers.0"],
    "last layer": ["model.layers.1", "model.norm"],
    "attention": ["*.self_attn"],
    "mlp": ["*.mlp"],
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", LAYOUTS_OF_STEPS)
@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3"])
def test_gradients_and_steps_equal_those_of_one_process(start, tmp_path, family, layout, part, recompute):
    layout = layout.replace("ep2", "dp") if family == "qwen3" else layout
    model = {"enable_gradient_checkpointing": recompute}
    request = make_request(save_model(tmp_path, family), layout, model=model, freeze_modules=PARTS[part])
    backend, alone, samples = start(request), in_one_process(request), make_samples(7)
    expected = expected_gradients(alone, samples, LOSS)
    found = gradients(backend, samples, LOSS)
    assert {name for name, value in found.items() if not value.isnan().all()} == expected.keys()
    assert_equal_gradients(found, expected)
    before = dict(AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters())
    metrics = [asyncio.run(each.train_step(samples, LOSS)).metrics for each in (backend, alone)]
    assert metrics[0]["grad_norm"] == pytest.approx(metrics[1]["grad_norm"], rel=1e-5)
    weights = dict(backend.weights())
    assert weights.keys() == {name for name, _ in alone.weights()} == expected.keys()
    for name, value in alone.weights():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    assert {name for name, _ in backend.checkpoint_weights()} == {name for name, _ in alone.checkpoint_weights()}
    for each in backend._model.weights.parameters:  # of this process
        for own in (part for part in each.parts if part.name in before and part.name not in weights):
            box = tuple(slice(start, start + length) for start, length in own.box)
            assert torch.equal(own.view(each.value).reshape(before[own.name][box].shape), before[own.name][box])


def test_a_run_resumes_only_with_the_same_frozen_weights_in_every_layout(start, tmp_path):
    path = save_model(tmp_path / "a", "qwen3_moe")
    first = start(make_request(path, OTHER_LAYOUTS[-1], freeze_modules=["model.layers.0"]))
    asyncio.run(first.train_step(make_samples(4), LOSS))
    asyncio.run(first.save(tmp_path / "saved"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    before = AutoModelForCausalLM.from_pretrained(path).state_dict()
    changed = {name for name, value in saved.items() if not torch.equal(value, before[name])}
    assert changed == {name for name, _ in first.weights()}
    expected = asyncio.run(first.train_step(make_samples(4, 1), LOSS)).metrics
    asyncio.run(first.close())  # the next has another layout
    for layout in OTHER_LAYOUTS:
        other = start(make_request(path, layout, freeze_modules=["model.layers.0"]), seed=1)
        asyncio.run(other.load(tmp_path / "saved"))
        found = asyncio.run(other.train_step(make_samples(4, 1), LOSS)).metrics
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
        asyncio.run(other.close())
    elsewhere = save_model(tmp_path / "b", "qwen3_moe", seed=1)
    for folder, part in ((path, "model.layers.1"), (elsewhere, "model.layers.0")):
        other = start(make_request(folder, OTHER_LAYOUTS[0], freeze_modules=[part]))
        with pytest.raises(ConfigError, match="other weights were frozen"):
            asyncio.run(other.load(tmp_path / "saved"))


@pytest.mark.parametrize(
    ("patterns", "complaint"),
    [
        (["model.layer.0"], "no module or weight is called 'model.layer.0': the nearest name is 'model.layers.0'"),
        (["*"], "freezes all weights"),
        (["*.q_proj"], "freezes 'model.layers.0.self_attn.q_proj.weight' without 'model.layers.0.self_attn.k_proj"),
        (["*.up_proj"], "freezes 'model.layers.0.mlp.up_proj.weight' without 'model.layers.0.mlp.gate_proj.weight'"),
    ],
)
def test_patterns_that_cannot_be_frozen_are_refused(start, tmp_path, patterns, complaint):
    path = save_model(tmp_path, "llama")
    with pytest.raises(ConfigError, match=complaint):
        start(make_request(path, LAYOUTS_OF_STEPS[0], freeze_modules=patterns))


def test_a_tied_head_is_the_embedding(start, tmp_path):
    backend = start(make_request(save_model(tmp_path, "qwen3"), LAYOUTS_OF_STEPS[0], freeze_modules=["lm_head"]))
    assert "model.embed_tokens.weight" not in dict(backend.weights())
