"""Experts recorded by `score` are those of transformers' routers, and updates with other weights still use them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from router_choice import choices, in_order
from test_torch_routing_replay import assert_same, expected, found, hooked_forward, moe
from tiny_models import make_groups
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.packing import used_tokens
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.trainer.scorer import Scorer
from agentrl.types.sample import Sample

FAMILIES = ("qwen3_moe", "deepseek_v3")
LAYOUTS = {
    "shared prefixes": {},
    "small micro-batches": {"ppo_micro_batch_size_per_gpu": 2},
    "padded rows": {"share_prefixes": False, "ppo_micro_batch_size_per_gpu": 3},
}
LOSS = PolicyLoss("vanilla")


def save(path: Path, family: str) -> Path:
    model = moe(family)
    for key, value in model.state_dict().items():
        if key.endswith("e_score_correction_bias"):
            value.copy_(torch.randn(value.shape) / 4)
    model.save_pretrained(path)
    return path


@contextmanager
def recording(path: Path, **options: object) -> Iterator[tuple[TorchBackend, PreTrainedModel]]:
    """A backend that records experts, and the same model of transformers."""
    model = ModelConfig.model_validate({"path": str(path), **options.pop("model", {})})
    actor = ActorConfig.model_validate({"optim": {"lr": 0.02}, **options})
    backend = load_torch_backend(model, actor, total_updates=9, seed=0, routed_by="actor")
    try:
        yield backend, AutoModelForCausalLM.from_pretrained(path).eval()
    finally:
        asyncio.run(backend.close())


def scored(backend: TorchBackend, samples: list[Sample]) -> list[Sample]:
    return asyncio.run(Scorer({"old_logprobs": backend.score})(samples))


def with_untrained(samples: list[Sample]) -> list[Sample]:
    """The samples and one without trained tokens, whose experts come from somewhere else."""
    wrong = torch.ones(3, 2, 2, dtype=torch.uint8)
    others = [replace(sample, routed_experts=wrong) for sample in samples]
    return [*others, replace(others[0], loss_mask=[0] * len(others[0].token_ids))]


def same_as(model: PreTrainedModel, like: PreTrainedModel) -> PreTrainedModel:
    model.load_state_dict(like.state_dict())
    return model


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_experts_are_the_best_by_the_logits_of_the_routers(tmp_path, family, layout):
    samples = with_untrained(make_groups())
    with recording(save(tmp_path, family), **LAYOUTS[layout]) as (backend, model):
        found = scored(backend, samples)
    assert found[-1].routed_experts is None
    for sample, best in zip(found[:-1], choices(model, samples[:-1]), strict=True):
        assert torch.equal(in_order(sample.routed_experts), best)
        assert sample.routed_experts.dtype is torch.uint8


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_updates_of_a_step_use_the_experts_of_its_start(tmp_path, family, layout):
    with recording(save(tmp_path, family), **LAYOUTS[layout]) as (backend, model):
        samples = scored(backend, make_groups())
        before = choices(model, samples)
        assert_same(found(backend._positionwise, samples), expected(model, samples))
        first, second = samples[:5], samples[5:]
        for mini_batch in (first, second, first):
            metrics = asyncio.run(backend.train_step(mini_batch, LOSS)).metrics
            assert metrics["replayed_share"] == 1.0
        after = choices(same_as(model, backend.model), samples)
        assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))  # free routers now differ
        forced = expected(model, samples)
        free = expected(model, [replace(sample, routed_experts=None) for sample in samples])
        assert (forced[0] - free[0]).abs().max() > 0.01
        assert_same(found(backend._positionwise, samples), forced)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_get_the_recorded_experts_of_every_token(tmp_path, family):
    """Reads what the experts of each layer receive in an update, one sample per micro-batch."""
    options = {"share_prefixes": False, "ppo_micro_batch_size_per_gpu": 1}
    with recording(save(tmp_path, family), **options) as (backend, _):
        samples = scored(backend, make_groups())
        asyncio.run(backend.train_step(samples, LOSS))
        given: dict[int, list[Tensor]] = {}
        for number, layer in enumerate(backend.model.base_model.layers):
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts.register_forward_pre_hook(
                    lambda module, inputs, number=number: given.setdefault(number, []).append(inputs[1])
                )
        asyncio.run(backend.train_step(samples, LOSS))
    order = [index for pack in backend._cut(samples) for index in pack]
    assert given
    for number, passes in given.items():
        for index, experts in zip(order, passes, strict=True):
            known = samples[index].routed_experts[:, number]
            assert torch.equal(in_order(experts)[: len(known)], in_order(known))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_replay_before_an_update_changes_no_logprob(tmp_path, family):
    with recording(save(tmp_path, family)) as (backend, _):
        samples = scored(backend, make_groups())
        bare = [replace(sample, routed_experts=None) for sample in samples]
        torch.testing.assert_close(
            found(backend._positionwise, samples)[0], found(backend._positionwise, bare)[0], rtol=1e-5, atol=1e-5
        )


@pytest.mark.slow
def test_scores_record_the_experts_of_the_current_weights(tmp_path):
    """`score` ignores the experts of an earlier step."""
    with recording(save(tmp_path, "qwen3_moe")) as (backend, model):
        samples = scored(backend, make_groups())
        for _ in range(3):
            asyncio.run(backend.train_step(samples, LOSS))
        again = scored(backend, samples)
        same_as(model, backend.model)
        for sample, best in zip(again, choices(model, samples), strict=True):
            assert torch.equal(in_order(sample.routed_experts), best)
            logits = hooked_forward(model, replace(sample, routed_experts=None)).detach()
            last = len(used_tokens(sample))
            free = (logits[last - 1] / sample.temperatures[last]).log_softmax(-1)[sample.token_ids[last]]
            assert sample.old_logprobs[last] == pytest.approx(free.item(), abs=1e-3)


@pytest.mark.slow
def test_the_base_model_of_an_adapter_records_nothing(tmp_path):
    lora = {"lora_rank": 2, "target_modules": ["q_proj"]}
    with recording(save(tmp_path, "qwen3_moe"), model=lora) as (backend, model):
        samples = scored(backend, make_groups())
        assert asyncio.run(backend.reference_score()(samples)).routed_experts is None
        for sample, best in zip(samples, choices(model, samples), strict=True):  # a new adapter changes nothing
            assert torch.equal(in_order(sample.routed_experts), best)
