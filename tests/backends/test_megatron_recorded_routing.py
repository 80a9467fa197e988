"""Megatron records the experts of transformers' routers in every layout, and replays them like the torch backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_models import VARIANTS, in_one_process, make_request, save_variant
from rank_processes import NUM_RANKS
from router_choice import choices, in_order
from tiny_models import make_groups, make_samples, save_model
from transformers import AutoModelForCausalLM

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import Backend
from agentrl.errors import ConfigError
from agentrl.trainer.scorer import Scorer
from agentrl.types.sample import Sample

pytestmark = pytest.mark.megatron

EXPERTS, DEEP = ("qwen3_moe", "deepseek_v3"), ("deep qwen3_moe", "deep deepseek_v3")
LAYOUTS = {
    1: {"": (*EXPERTS, "glm4_moe", "dense layers"), "hybrid": EXPERTS, "shared": EXPERTS},
    2: {
        "tp2": EXPERTS,
        "pp2": EXPERTS,
        "cp2": EXPERTS,
        "ep2": (*EXPERTS, "dense layers"),
        "ep2 allgather": ("qwen3_moe",),
        "dp": EXPERTS,
        "tp2 ep2 etp1": EXPERTS,
        "pp2 vpp2": DEEP,
        "pp2 hybrid": ("deepseek_v3",),
        "tp2 shared": EXPERTS,
        "ep2 shared": ("deepseek_v3",),
    },
    4: {
        "tp2 pp2": EXPERTS,
        "tp2 cp2": EXPERTS,
        "tp2 pp2 ep2 etp1": EXPERTS,
        "pp2 cp2 ep2": ("deepseek_v3",),
        "pp2 vpp2 ep2": DEEP,
        "tp2 pp2 vpp2": ("deep qwen3_moe",),
    },
}[NUM_RANKS]
CASES = [f"{family}: {layout}" for layout, families in LAYOUTS.items() for family in families]
Start = Callable[[str], tuple[Backend, Backend, Path]]


@pytest.fixture
def both(start, tmp_path) -> Start:
    """Starts a model in a layout, and in one process."""

    def start_both(case: str) -> tuple[Backend, Backend, Path]:
        family, layout = case.split(": ")
        path = save_variant(tmp_path, family) if family in VARIANTS else save_model(tmp_path, family)
        options = {"share_prefixes": "shared" in layout, "ppo_micro_batch_size_per_gpu": 3}
        request = replace(make_request(path, layout.replace("shared", ""), **options), routed_by="actor")
        return start(request), in_one_process(request), path

    return start_both


def scored(backend: Backend, samples: list[Sample]) -> list[Sample]:
    return asyncio.run(Scorer({"old_logprobs": backend.score})(samples))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_updates_replay_the_recorded_experts_as_in_one_process(both, case):
    backend, alone, path = both(case)
    samples, own = (scored(each, make_groups()) for each in (backend, alone))
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    for sample, other, best in zip(samples, own, choices(model, samples), strict=True):
        assert torch.equal(in_order(sample.routed_experts), best)
        assert sample.old_logprobs == pytest.approx(other.old_logprobs, abs=1e-5)
    for start in (0, 5, 0, 5):  # mini-batches and epochs
        steps = (
            each.train_step(given[start : start + 5], PolicyLoss("vanilla"))
            for each, given in ((backend, samples), (alone, own))
        )
        found, expected = (asyncio.run(step).metrics for step in steps)
        assert found["replayed_share"] == 1.0
        for name in ("loss", "grad_norm"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name
    model.load_state_dict(alone.model.state_dict())
    pairs = zip(samples, choices(model, samples), strict=True)
    assert any(not torch.equal(in_order(sample.routed_experts), best) for sample, best in pairs)


@pytest.mark.parametrize("num_samples", [1, 3])
def test_each_number_of_samples_is_recorded(both, num_samples):
    """Some processes, or stages of a pipeline with several parts, have fewer micro-batches than others."""
    case = {1: "qwen3_moe: ", 2: "deep qwen3_moe: pp2 vpp2", 4: "deep qwen3_moe: tp2 pp2 vpp2"}[NUM_RANKS]
    backend, _, path = both(case)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    samples = make_samples(num_samples)
    untrained = replace(samples[0], loss_mask=[0] * len(samples[0].token_ids))
    *found, last = scored(backend, [*samples, untrained])
    assert last.routed_experts is None
    for sample, best in zip(found, choices(model, samples), strict=True):
        assert torch.equal(in_order(sample.routed_experts), best)


def test_a_dense_model_is_refused_by_the_key_of_the_policy(start, tmp_path):
    request = replace(make_request(save_model(tmp_path, "qwen3")), routed_by="actor")
    with pytest.raises(ConfigError, match=r"actor\.routed_experts. needs a mixture of experts"):
        start(request)


def test_the_base_model_of_an_adapter_records_nothing(start, tmp_path):
    lora = {"lora_rank": 2, "target_modules": ["q_proj"]}
    backend = start(replace(make_request(save_model(tmp_path, "qwen3_moe"), model=lora), routed_by="actor"))
    samples = scored(backend, make_samples(3))
    assert asyncio.run(backend.reference_score()(samples)).routed_experts is None
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for sample, best in zip(samples, choices(model, samples), strict=True):  # a new adapter changes nothing
        assert torch.equal(in_order(sample.routed_experts), best)
