"""Replayed expert routing, in every layout, equals plain transformers with a hook that forces the experts."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB, make_groups, make_model, save_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.packing import num_common, token_keys, used_tokens
from agentrl.backends.torch.backend import load_torch_backend
from agentrl.backends.torch.batches import micro_batch
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.gradient_checkpointing import enable_checkpointing
from agentrl.backends.torch.layout import pack_tokens
from agentrl.backends.torch.routing_replay import RoutingReplay
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.types.sample import Sample

CPU = torch.device("cpu")
LAYERS, TOP_K, EXPERTS = 2, 2, 4
MORE = {
    "mixtral": {"num_local_experts": EXPERTS, "num_experts_per_tok": TOP_K},
    "qwen2_moe_not_normalised": {"norm_topk_prob": False, "shared_expert_intermediate_size": 16},
    "deepseek_v3": {
        "n_routed_experts": EXPERTS,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
        "head_dim": 4,
        "num_key_value_heads": 4,
    },
}


def moe(family: str):
    """A random model with normalised gates unless its name says otherwise."""
    if family not in MORE:
        return make_model(family)
    torch.manual_seed(0)
    common = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": LAYERS}
    heads = {"vocab_size": VOCAB, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": TOP_K}
    if "qwen" in family:
        heads["num_experts"] = EXPERTS
    config = AutoConfig.for_model(family.removesuffix("_not_normalised"), **common, **(heads | MORE[family]))
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8.0)
    return model


def routed(samples: list[Sample], seed: int = 0) -> list[Sample]:
    """Random experts, equal where samples share a prefix.

    Every third sample has different experts from its second token on; one sample has none; one has none for its last
    tokens.
    """
    result = []
    for number, sample in enumerate(samples):
        rows = []
        for end in range(1, len(sample.token_ids)):
            draw = random.Random(
                repr((seed, list(sample.token_ids[:end]), number if number % 3 == 0 and end > 1 else 0))
            )
            rows.append([draw.sample(range(EXPERTS), TOP_K) for _ in range(LAYERS)])
        experts = torch.tensor(rows, dtype=torch.uint8)
        result.append(replace(sample, routed_experts=experts))
    result[1] = replace(result[1], routed_experts=None)
    result[2] = replace(result[2], routed_experts=result[2].routed_experts[:-2])
    return result


def hooked_forward(model, sample: Sample) -> Tensor:
    """Logits of one sample by transformers alone, with forced experts; [T, V]."""
    handles, layers = [], model.base_model.layers
    for number, layer in enumerate(layers):
        gate = getattr(layer.mlp, "gate", None)
        if gate is None or sample.routed_experts is None:
            continue
        experts = sample.routed_experts[:, number].long()

        def route(module, inputs, output, experts=experts, block=layer.mlp):
            # DeepSeek-V3's gate returns logits alone; the hook replaces the selection below
            if not isinstance(output, tuple):
                block.wanted = experts
                return output
            logits, _, own = output
            chosen = torch.cat([experts[: len(own)], own[len(experts) :]])
            weights = logits.softmax(-1, dtype=torch.float).gather(1, chosen)
            if getattr(module, "norm_topk_prob", True):
                weights = weights / weights.sum(-1, keepdim=True)
            return logits, weights.to(output[1].dtype), chosen

        handles.append(gate.register_forward_hook(route))
        if hasattr(layer.mlp, "route_tokens_to_experts"):
            own_choice = layer.mlp.route_tokens_to_experts

            def choose(logits, own_choice=own_choice, experts=experts, config=model.config):
                chosen = torch.cat([experts[: len(logits)], own_choice(logits)[0][len(experts) :]])
                weights = logits.sigmoid().gather(1, chosen)
                return chosen, weights / weights.sum(-1, keepdim=True) * config.routed_scaling_factor

            layer.mlp.route_tokens_to_experts = choose
    logits = model(input_ids=torch.tensor([sample.token_ids]), use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    for layer in layers:
        vars(layer.mlp).pop("route_tokens_to_experts", None)
    return logits


def weigh(logprobs_N: Tensor) -> Tensor:
    """A loss in which every token has a different weight."""
    return (torch.sin(1 + torch.arange(len(logprobs_N))) * logprobs_N).sum()


def gradients(model, value: Tensor) -> list[Tensor]:
    model.zero_grad()
    value.backward()
    return [torch.zeros(1) if each.grad is None else each.grad.clone() for each in model.parameters()]


def expected(model, samples: list[Sample]) -> tuple[Tensor, list[Tensor]]:
    logprobs = []
    for sample in samples:
        logits = hooked_forward(model, sample)
        for index in (index for index, trained in enumerate(sample.loss_mask) if trained):
            logprobs.append((logits[index - 1] / sample.temperatures[index]).log_softmax(-1)[sample.token_ids[index]])
    found = torch.stack(logprobs)
    return found.detach(), gradients(model, weigh(found))


def found(positionwise: PositionwiseModel, samples: list[Sample]) -> tuple[Tensor, list[Tensor]]:
    with positionwise.running():
        logprobs_N = positionwise.outputs(micro_batch(samples, CPU), entropy_gradient=False)["logprobs"]
        return logprobs_N.detach(), gradients(positionwise.model, weigh(logprobs_N))


def assert_same(one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]]) -> None:
    for mine, theirs in zip([one[0], *one[1]], [other[0], *other[1]], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-4 * max(1.0, float(theirs.abs().max())))


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("layout", ["packed", "padded", "checkpointed"])
@pytest.mark.parametrize("family", ["qwen3_moe", *MORE])
def test_logprobs_and_gradients_equal_transformers_with_a_hook(family, layout):
    model, samples = moe(family), routed(make_groups())
    reference = expected(model, samples)
    plain = expected(model, [replace(sample, routed_experts=None) for sample in samples])
    assert (reference[0] - plain[0]).abs().max() > 0.05  # the choice of experts changes the result
    if layout == "checkpointed":
        enable_checkpointing(model)
    positionwise = PositionwiseModel(model, share_prefixes=layout != "padded", replay=RoutingReplay(model))
    assert positionwise.shares_prefixes == (layout != "padded")
    assert_same(found(positionwise, samples), reference)
    assert_same(found(positionwise, [replace(sample, routed_experts=None) for sample in samples]), plain)


def test_router_gates_train_and_own_routing_is_reproducible():
    model = moe("qwen3_moe")
    (sample, *_) = routed(make_groups())
    chosen: dict[int, Tensor] = {}
    for number, layer in enumerate(model.base_model.layers):
        layer.mlp.gate.register_forward_hook(lambda *given, number=number: chosen.update({number: given[2][2]}))
    model(input_ids=torch.tensor([sample.token_ids]), use_cache=False)
    own = torch.stack([chosen[0], chosen[1]], dim=1)[:-1].to(torch.uint8)
    positionwise = PositionwiseModel(model, share_prefixes=True, replay=RoutingReplay(model))
    replayed = found(positionwise, [replace(sample, routed_experts=own)])
    alone = found(positionwise, [replace(sample, routed_experts=None)])
    assert torch.equal(replayed[0], alone[0])
    assert all(map(torch.equal, replayed[1], alone[1]))
    assert all(layer.mlp.gate.weight.grad.abs().max() > 0 for layer in model.base_model.layers)


ROWS = st.lists(st.tuples(st.integers(0, 2), st.permutations([7, 255, 3]).map(lambda rows: rows[:2])), max_size=9)


@given(ROWS, ROWS)
@settings(max_examples=3 * settings.default.max_examples)
def test_samples_are_computed_together_as_long_as_tokens_and_experts_agree(one, other):
    def sample(rows) -> Sample:
        token_ids = [token for token, _ in rows] + [5]
        experts = torch.tensor([[experts] for _, experts in rows], dtype=torch.uint8).view(-1, 1, 2)
        zeros = [0.0] * len(token_ids)
        return Sample(token_ids, [0] * len(rows) + [1], zeros, zeros, routed_experts=experts)

    alike = 0
    for (token, experts), (other_token, other_experts) in zip(one, other, strict=False):
        if token != other_token or set(experts) != set(other_experts):
            break
        alike += 1
    first, second = token_keys(sample(one)), token_keys(sample(other))
    assert num_common(first, second) == alike
    assert len(first) == len(one)


def test_prefix_sharing_stops_where_routed_experts_differ():
    samples = make_groups(prompts=((9, 3),))[:2]
    trained = [replace(sample, loss_mask=[0] * 9 + [1] * (len(sample.token_ids) - 9)) for sample in samples]
    alike = [replace(sample, routed_experts=torch.zeros(len(sample.token_ids) - 1, 2, 2).int()) for sample in trained]
    parted = [alike[0], replace(alike[1], routed_experts=alike[1].routed_experts.clone())]
    parted[1].routed_experts[4, 1, 0] = 3
    used = sum(len(used_tokens(sample)) for sample in trained)

    def num_packed(given: list[Sample]) -> int:
        packed = pack_tokens(given, {0: None, 1: None}, CPU)
        assert packed.routed_experts is None or len(packed.routed_experts) == len(packed.token_ids)
        return len(packed.token_ids)

    assert num_packed(alike) == num_packed(trained) == used - num_common(*map(used_tokens, trained))
    assert num_packed(parted) == used - 4


@pytest.mark.slow
def test_score_and_train_step_replay_experts_for_any_split(tmp_path):
    save_model(tmp_path, "qwen3_moe")
    samples = routed(make_groups())
    logprobs, _ = expected(make_model("qwen3_moe"), samples)

    async def run(given: list[Sample], **options: object) -> tuple[list[list[float]], float]:
        actor = ActorConfig.model_validate(options)
        backend = load_torch_backend(
            ModelConfig(path=str(tmp_path)), actor, total_updates=1, seed=0, routed_by="rollout"
        )
        try:
            scores = await backend.score(given)
            stats = await backend.train_step(given, PolicyLoss("sft"))
            known = sum(
                min(len(used_tokens(each)), len(each.routed_experts))
                for each in given
                if each.routed_experts is not None
            )
            assert stats.metrics["replayed_share"] == known / sum(len(used_tokens(each)) for each in given)
            return scores.logprobs, stats.metrics["grad_norm"]
        finally:
            await backend.close()

    whole, norm = asyncio.run(run(samples))
    pairs = [zip(row, sample.loss_mask, strict=True) for row, sample in zip(whole, samples, strict=True)]
    flat = torch.tensor([value for row in pairs for value, trained in row if trained])
    torch.testing.assert_close(flat, logprobs, rtol=1e-3, atol=1e-3)
    for options in ({"ppo_micro_batch_size_per_gpu": 2}, {"share_prefixes": False}):
        scores, its_norm = asyncio.run(run(samples, **options))
        assert its_norm == pytest.approx(norm, rel=1e-4)
        for mine, theirs in zip(scores, whole, strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=1e-3, atol=1e-3)
    assert asyncio.run(run([replace(sample, routed_experts=None) for sample in samples]))[1] != pytest.approx(
        norm, 1e-2
    )


@pytest.mark.slow
def test_without_replay_recorded_experts_change_nothing(tmp_path):
    save_model(tmp_path, "qwen3_moe")
    samples = routed(make_groups())

    async def score(given: list[Sample]) -> list[list[float]]:
        backend = load_torch_backend(ModelConfig(path=str(tmp_path)), ActorConfig(), total_updates=1, seed=0)
        try:
            return (await backend.score(given)).logprobs
        finally:
            await backend.close()

    bare = [replace(sample, routed_experts=None) for sample in samples]
    assert asyncio.run(score(samples)) == asyncio.run(score(bare))


def test_model_without_experts_or_with_a_custom_router_is_refused():
    with pytest.raises(ConfigError, match=r"'rollout.routed_experts' needs a mixture of experts: no layer of Qwen3For"):
        RoutingReplay(make_model("qwen3"))
    with pytest.raises(ConfigError, match=r"'actor.routed_experts' needs a mixture of experts"):
        RoutingReplay(make_model("qwen3"), routed_by="actor")
    model = moe("qwen3_moe")
    gate = model.base_model.layers[1].mlp.gate
    gate.forward = lambda states: (
        None,
        torch.ones(len(states), TOP_K),
        torch.zeros(len(states), TOP_K, dtype=torch.long),
    )
    with pytest.raises(ConfigError, match=r"the router of Qwen3MoeForCausalLM is not supported .*layer 1"):
        RoutingReplay(model)


@pytest.mark.parametrize(("shape", "value"), [((3, 1, 2), 0), ((3, 2, 3), 0), ((3, 2, 2), 4)])
def test_experts_of_another_model_are_refused(shape, value):
    replay = RoutingReplay(moe("qwen3_moe"))
    with pytest.raises(ValueError, match="do not fit this model: layers up to 1, 2 per token, 4 experts"):
        replay.give(torch.full(shape, value, dtype=torch.int16))
