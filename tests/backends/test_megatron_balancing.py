"""Losses and biases that balance experts equal formulas in float64, summed over micro-batches in every layout."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_models import expected_gradients, gradients, in_one_process, layout_of, make_request, save_variant
from rank_processes import NUM_RANKS, ROUNDING
from tiny_models import in_float64, make_groups, make_samples, save_model
from torch import Tensor

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.fsdp.assignment import assign
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.backends.packing import used_tokens
from agentrl.backends.torch.backend import TorchBackend
from agentrl.types.sample import Sample

pytestmark = pytest.mark.megatron

LAYOUTS = {
    1: ("",),
    2: ("tp2", "pp2", "cp2", "ep2", "ep2 allgather", "dp", "tp2 ep2 etp1", "tp2 hybrid"),
    4: ("tp2 ep2 etp1", "pp2 ep2", "tp2 cp2"),
}[NUM_RANKS]
RECOMPUTED = {1: ("",), 2: ("tp2", "pp2", "pp2 vpp2"), 4: ("pp2 ep2", "pp4")}[NUM_RANKS]
WHOLE = [layout for layout in LAYOUTS if "pp" not in layout and "cp" not in layout]
CASES = [*((layout, False) for layout in LAYOUTS), *((layout, True) for layout in WHOLE)]
LOSS = PolicyLoss("vanilla")
AUX, Z = 0.3, 0.01


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: save_model(tmp_path_factory.mktemp(name), name) for name in ("qwen3_moe", "deepseek_v3")}
    variants = ("glm4_moe", "deep deepseek_v3")
    return found | {name: save_variant(tmp_path_factory.mktemp("variant"), name) for name in variants}


@contextmanager
def started(ranks: Ranks, path: Path, layout: str, *, share: bool = False, **options: float) -> Iterator[tuple]:
    """A model in a layout, and the same model in float64 in one process."""
    request = make_request(path, megatron=layout_of(layout) | options, share_prefixes=share)
    backend = MegatronBackend(ranks, request, seed=0)
    alone = in_one_process(make_request(path))
    in_float64(alone.model)
    try:
        yield backend, alone
    finally:
        asyncio.run(backend.close())


def micro_batches(backend: MegatronBackend, samples: Sequence[Sample]) -> list[list[Sample]]:
    groups = assign(samples, len(backend._reporting), LOSS.scope)
    return [
        [samples[own[index]] for index in pack]
        for own in groups
        for pack in backend._model._cut([samples[index] for index in own])
    ]


def router_inputs(alone: TorchBackend, batch: Sequence[Sample], *, share: bool) -> dict[torch.nn.Module, Tensor]:
    """Each block with experts -> its input for the tokens of a micro-batch; with `share`, a prefix counts once."""
    blocks = [module for module in alone.model.modules() if hasattr(module, "experts") and hasattr(module, "gate")]
    found: dict[torch.nn.Module, list[Tensor]] = {block: [] for block in blocks}
    hooks = [block.register_forward_pre_hook(lambda block, args: found[block].append(args[0][0])) for block in blocks]
    seen: set[tuple[int, ...]] = set()
    new: list[Tensor] = []
    for sample in batch:
        tokens = used_tokens(sample).tolist()
        alone.model(input_ids=torch.tensor([tokens]), use_cache=False)
        prefixes = [tuple(tokens[: end + 1]) for end in range(len(tokens))]
        new.append(torch.tensor([not share or prefix not in seen for prefix in prefixes]))
        seen.update(prefixes)
    for hook in hooks:
        hook.remove()
    return {
        block: torch.cat([own[mask] for own, mask in zip(states, new, strict=True)]) for block, states in found.items()
    }


def balancing_losses(alone: TorchBackend, batches: Sequence[Sequence[Sample]], *, share: bool) -> tuple[Tensor, Tensor]:
    """Means over the layers: E sum(f P), of Switch Transformer (arXiv:2101.03961), and the z-loss of ST-MoE
    (arXiv:2202.08906); of each micro-batch, weighted by its tokens."""
    config = alone.model.config
    aux, z, total = [], [], 0
    for batch in batches:
        for block, states in router_inputs(alone, batch, share=share).items():
            logits = states @ block.gate.weight.T
            if config.model_type == "qwen3_moe":
                scores = logits.softmax(-1)
            else:
                scores = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
            top_k = config.num_experts_per_tok
            chosen = torch.zeros_like(scores).scatter(1, scores.topk(top_k).indices, 1.0)
            fractions = chosen.sum(0) / (top_k * len(scores))
            aux.append(len(scores) * scores.shape[1] * (fractions * scores.mean(0)).sum())
            z.append(logits.logsumexp(-1).square().sum())
        total += len(states)
    num_layers = len(aux) / len(batches)
    return sum(aux) / total / num_layers, sum(z) / total / num_layers


def num_layers_with_experts(alone: TorchBackend) -> int:
    return sum(hasattr(module, "experts") and hasattr(module, "gate") for module in alone.model.modules())


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("layout", "share"), CASES)
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_losses_have_the_gradients_of_their_formulas(ranks, folders, family, layout, share):
    options = {"moe_aux_loss_coeff": AUX, "moe_z_loss_coeff": Z}
    samples = make_groups() if share else make_samples(7)
    with started(ranks, folders[family], layout, share=share, **options) as (backend, alone):
        found = gradients(backend, samples, LOSS)
        plain = {name: value.clone() for name, value in expected_gradients(alone, samples, LOSS).items()}
        aux, z = balancing_losses(alone, micro_batches(backend, samples), share=share)
        ((AUX * aux + Z * z) * num_layers_with_experts(alone)).backward()
        expected = {name: value.grad for name, value in alone.model.named_parameters() if value.grad is not None}
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= ROUNDING * gradient.norm() + 1e-9, name
        changed = [name for name, value in plain.items() if (expected[name] - value).norm() > 0.01 * value.norm()]
        assert any("gate.weight" in name for name in changed)
        metrics = asyncio.run(backend.train_step(samples, LOSS)).metrics
        assert metrics["moe_aux_loss"] == pytest.approx(aux.item(), rel=1e-5)
        assert metrics["moe_z_loss"] == pytest.approx(z.item(), rel=1e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_the_bias_of_an_expert_rises_where_it_has_too_few_tokens(ranks, folders, family, layout):
    """DeepSeek-V3, section 2.1.2 (arXiv:2412.19437): up by the rate if underloaded, down if overloaded."""
    rate, samples = 0.02, make_samples(7)
    with started(ranks, folders[family], layout, moe_router_bias_update_rate=rate) as (backend, alone):
        expected = {}
        with torch.no_grad():
            blocks = router_inputs(alone, samples, share=False)
        names = {block: name for name, block in alone.model.named_modules()}
        for block, states in blocks.items():
            chosen, _ = block.route_tokens_to_experts(states @ block.gate.weight.T)
            loads = torch.bincount(chosen.flatten(), minlength=len(block.gate.weight)).double()
            bias = block.gate.e_score_correction_bias
            expected[f"{names[block]}.gate.e_score_correction_bias"] = bias + rate * (loads.mean() - loads).sign()
        asyncio.run(backend.score(samples))  # counts no tokens
        asyncio.run(backend.train_step(samples, LOSS))
        weights = dict(backend.weights())
        assert expected
        for name, bias in expected.items():
            torch.testing.assert_close(weights[name].double(), bias.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", RECOMPUTED)
def test_recomputed_layers_balance_once(ranks, folders, layout):
    options = {"moe_aux_loss_coeff": AUX, "moe_z_loss_coeff": Z, "moe_router_bias_update_rate": 0.01}
    samples, found = make_samples(5), []
    full = {"recompute_granularity": "full"}
    for recompute in ({}, full, full | {"recompute_method": "block", "recompute_num_layers": 1}):
        with started(ranks, folders["deep deepseek_v3"], layout, **options, **recompute) as (backend, _):
            metrics = asyncio.run(backend.train_step(samples, LOSS)).metrics
            weights = {name: value.clone() for name, value in backend.weights() if "correction_bias" in name}
            found.append((metrics["moe_aux_loss"], metrics["moe_z_loss"], metrics["grad_norm"], weights))
    (*numbers, biases), *others = found
    for *other_numbers, other_biases in others:
        assert numbers == pytest.approx(other_numbers, rel=1e-6)
        assert all(torch.equal(biases[name], value) for name, value in other_biases.items())


def test_recorded_experts_change_the_bias_but_not_the_loss(ranks, folders):
    options = {"moe_aux_loss_coeff": AUX, "moe_router_bias_update_rate": 0.01}
    path = folders["deepseek_v3"]
    request = replace(make_request(path, megatron=layout_of(LAYOUTS[0]) | options), routed_by="rollout")
    samples = make_samples(4)
    experts = [torch.arange(4, dtype=torch.uint8).expand(len(sample.token_ids), 2, 4) for sample in samples]
    recorded = [replace(sample, routed_experts=own) for sample, own in zip(samples, experts, strict=True)]
    found = []
    for own in (samples, recorded):
        backend = MegatronBackend(ranks, request, seed=0)
        loss = asyncio.run(backend.train_step(own, LOSS)).metrics["moe_aux_loss"]
        found.append((loss, dict(backend.weights())["model.layers.1.mlp.gate.e_score_correction_bias"].clone()))
        asyncio.run(backend.close())
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert found[1][1].sign().tolist() == [-1.0] * 4 + [1.0] * 4
    assert not torch.equal(found[0][1], found[1][1])
