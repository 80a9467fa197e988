"""Several ranks record the experts of transformers' routers, and replay them like one process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rank_processes import NUM_RANKS
from router_choice import choices, in_order
from test_fsdp import make_request
from tiny_models import make_groups, save_model
from transformers import AutoModelForCausalLM

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.fsdp.backend import FsdpBackend
from agentrl.backends.torch.backend import load_torch_backend
from agentrl.trainer.scorer import Scorer

pytestmark = [pytest.mark.slow, pytest.mark.minutes]
LAYOUTS = {
    "samples": {},
    "positions": {"ulysses_sequence_parallel_size": NUM_RANKS},
    "padded rows": {"share_prefixes": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("qwen3_moe"), "qwen3_moe")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_replay_the_recorded_experts_as_in_one_process(ranks, folder, layout):
    request = replace(make_request(folder, **LAYOUTS[layout]), routed_by="actor")
    backend = FsdpBackend(ranks, request, seed=0)
    alone = load_torch_backend(request.model, make_request(folder).actor, total_updates=10, seed=0, routed_by="actor")
    samples, own = (asyncio.run(Scorer({"old_logprobs": each.score})(make_groups())) for each in (backend, alone))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    for sample, other, best in zip(samples, own, choices(model, samples), strict=True):
        assert torch.equal(in_order(sample.routed_experts), best)
        assert sample.old_logprobs == pytest.approx(other.old_logprobs, abs=1e-5)
    for start in (0, 5, 0, 5):  # mini-batches and epochs
        part, loss = slice(start, start + 5), PolicyLoss("vanilla")
        found, expected = (
            asyncio.run(each.train_step(given[part], loss)).metrics
            for each, given in ((backend, samples), (alone, own))
        )
        assert found["replayed_share"] == 1.0
        for name in ("loss", "grad_norm"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name
    model.load_state_dict(alone.model.state_dict())
    pairs = zip(samples, choices(model, samples), strict=True)
    assert any(not torch.equal(in_order(sample.routed_experts), best) for sample, best in pairs)
    asyncio.run(backend.close())
