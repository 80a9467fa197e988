"""An update that is skipped, because its gradients are not finite, changes nothing."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from megatron_models import layout_of, make_request
from rank_processes import NUM_RANKS
from tiny_models import make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss

pytestmark = pytest.mark.megatron

LAYOUTS = {1: ("",), 2: ("pp2", "ep2"), 4: ("pp2 ep2",)}[NUM_RANKS]
BIAS = "e_score_correction_bias"


@pytest.mark.parametrize("rate", [0.0, 0.02])
def test_expert_biases_are_copied_only_if_they_change(start, tmp_path, rate):
    options = layout_of(LAYOUTS[-1]) | {"moe_router_bias_update_rate": rate}
    backend = start(make_request(save_model(tmp_path, "deepseek_v3"), megatron=options))
    asyncio.run(backend.train_step(make_samples(2), PolicyLoss("vanilla")))
    assert bool(backend._model.optimizer._biases) == bool(rate)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_skipped_update_keeps_the_weights_and_the_expert_biases(start, tmp_path, layout):
    options = layout_of(layout) | {"moe_router_bias_update_rate": 0.02}
    backend = start(make_request(save_model(tmp_path, "deepseek_v3"), megatron=options))
    samples, loss = make_samples(4), PolicyLoss("vanilla")
    asyncio.run(backend.train_step(samples, loss))
    before = {name: value.clone() for name, value in backend.weights()}
    assert any(value.any() for name, value in before.items() if name.endswith(BIAS))
    broken = replace(samples[0], advantages=[math.nan] * len(samples[0].advantages))
    metrics = asyncio.run(backend.train_step([broken, *samples[1:]], loss)).metrics
    assert metrics["skipped_updates"] == 1
    assert all(value.equal(before[name]) for name, value in backend.weights())
    asyncio.run(backend.train_step(samples, loss))  # the next update counts only its own tokens
    changed = {name: value - before[name] for name, value in backend.weights() if name.endswith(BIAS)}
    assert changed
    assert all(value.abs().max() == pytest.approx(0.02, abs=1e-6) for value in changed.values())
