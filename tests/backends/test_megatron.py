"""Training in a parallel layout equals training in one process with the torch backend."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_models import (
    VARIANTS,
    assert_equal_gradients,
    assert_equal_models,
    expected_gradients,
    gradients,
    in_one_process,
    layout_of,
    make_request,
    save_variant,
)
from rank_processes import NUM_RANKS, ROUNDING, on_cpu, run_again
from tiny_models import make_groups, make_model, make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.backends.torch.backend import TorchBackend
from agentrl.types.sample import Sample

pytestmark = pytest.mark.megatron

DENSE, EXPERTS = ("qwen3", "llama", "qwen2"), ("qwen3_moe", "deepseek_v3")
DEEP_EXPERTS = ("deep qwen3_moe", "deep deepseek_v3")
SCALED = ("llama3", "yarn")  # position embeddings
LAYOUTS = {
    1: {
        "": (*DENSE, *EXPERTS, *VARIANTS),
        "hybrid": (*DENSE, *EXPERTS, "llama3", "yarn", "glm4_moe", "dense layers"),
        "fp32": EXPERTS,
        "fp64": EXPERTS,
    },
    2: {
        "tp2": (*DENSE, *EXPERTS, *SCALED, "glm4_moe"),
        "tp2 without_sp": DENSE,
        "pp2": ("qwen3", "llama", *EXPERTS),
        "cp2": ("qwen3", "llama", *EXPERTS, *SCALED),
        "ep2": (*EXPERTS, "glm4_moe", "normalized experts", "dense layers"),
        "ep2 allgather": EXPERTS,
        "ep2 fp32": EXPERTS,
        "ep2 fp64": EXPERTS,
        "cp2 ep2": EXPERTS,
        "cp2 ep2 allgather": EXPERTS,
        "dp": ("qwen3", "llama", *EXPERTS, "published yarn", "yarn without mscale", "glm4_moe without norms"),
        "dp replicated": ("qwen3", "qwen3_moe"),
        "tp2 ep2 etp1": (*EXPERTS, "normalized experts"),
        "tp2 ep2 etp1 allgather": EXPERTS,
        "pp2 first1": ("deep", "deep deepseek_v3"),
        "pp2 last1": ("deep", "dense layers"),
        "pp2 vpp2": ("deep", *DEEP_EXPERTS),
        "pp2 vpp1": ("qwen3",),
        "tp2 hybrid": ("qwen3", "llama3", *EXPERTS),
        "pp2 hybrid": ("qwen3", "deepseek_v3"),
        "cp2 hybrid": ("llama",),
        "ep2 hybrid": EXPERTS,
        "dp hybrid": ("qwen2",),
        "pp2 vpp2 hybrid": ("deep",),
    },
    4: {
        "tp2 pp2": ("qwen3", "llama", *EXPERTS, *SCALED, "glm4_moe"),
        "tp2 pp2 without_sp": ("qwen3",),
        "tp2 pp2 replicated": ("qwen3",),
        "tp2 ep2": (*EXPERTS, "normalized experts"),
        "tp2 ep2 allgather": EXPERTS,
        "tp2 ep2 etp1": EXPERTS,
        "pp2 ep2": EXPERTS,
        "tp2 pp2 ep2 etp1": EXPERTS,
        "tp2 cp2 ep2 etp1": EXPERTS,
        "pp2 cp2 ep2": EXPERTS,
        "pp2 ep2 replicated": EXPERTS,
        "pp2 first1 ep2": DEEP_EXPERTS,
        "cp4": ("qwen3", "deepseek_v3"),
        "ep4": EXPERTS,
        "pp4": ("deep", *DEEP_EXPERTS),
        "pp4 vpp2": ("eight layers",),
        "pp4 vpp2 first4 last2": ("ten layers",),
        "pp2 vpp2 cp2": DEEP_EXPERTS,
        "pp2 vpp2 ep2": DEEP_EXPERTS,
        "pp2 vpp2 dp": ("deep",),
        "tp2 pp2 vpp2": DEEP_EXPERTS,
        "tp2 cp2": ("qwen3", *EXPERTS, "yarn"),
        "pp2 cp2": ("qwen3", *EXPERTS),
        "tp2 dp": ("qwen3",),
        "tp4": ("deepseek_v3",),
        "tp2 pp2 hybrid": ("qwen3", "glm4_moe"),
        "tp2 ep2 etp1 hybrid": EXPERTS,
        "tp2 pp2 ep2 etp1 hybrid": EXPERTS,
    },
    8: {"tp2 pp2 cp2": ("qwen3",), "tp2 pp2 cp2 ep2 etp1": EXPERTS},
}
CASES = [f"{family}: {layout}" for layout, families in LAYOUTS[NUM_RANKS].items() for family in families]
LAYOUTS_OF_STEPS = {
    1: ("",),
    2: ("tp2", "pp2", "cp2", "ep2", "tp2 ep2 etp1", "dp"),
    4: ("tp2 pp2", "tp2 ep2 etp1", "pp2 ep2"),
    8: ("tp2 pp2 cp2 ep2 etp1",),
}[NUM_RANKS]
CASES_OF_STEPS = [
    *((family, layout) for layout in LAYOUTS_OF_STEPS for family in EXPERTS),
    *(("qwen3", layout) for layout in LAYOUTS_OF_STEPS if "ep" not in layout),
]
PARTS = {1: "", 2: "pp2 vpp2", 4: "tp2 pp2 vpp2", 8: "tp2 pp2 vpp2"}
LOSSES = {
    "row": PolicyLoss("vanilla"),
    "rollout": PolicyLoss("gmpo"),
    "batch": PolicyLoss("kl_cov"),
    "sequence mean": PolicyLoss("vanilla", aggregation="seq-mean-token-mean"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: save_model(tmp_path_factory.mktemp(name), name) for name in (*DENSE, *EXPERTS)}
    return found | {name: save_variant(tmp_path_factory.mktemp("variant"), name) for name in VARIANTS}


@pytest.fixture
def both(start, folders) -> Callable[..., tuple[MegatronBackend, TorchBackend]]:
    """Starts a model in a layout, and in one process."""

    def start_both(case: str, **options: object) -> tuple[MegatronBackend, TorchBackend]:
        family, layout = case.split(": ")
        request = make_request(folders[family], layout, **options)
        return start(request), in_one_process(request)

    return start_both


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_scores_gradients_and_weights_equal_those_of_one_process(both, case):
    assert_equal_models(*both(case))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("layout", LAYOUTS_OF_STEPS)
def test_every_scope_of_a_loss_has_the_gradient_of_one_process(both, layout, name):
    backend, alone = both(f"qwen3_moe: {layout}")
    loss, samples = LOSSES[name], make_samples(7)
    assert_equal_gradients(gradients(backend, samples, loss), expected_gradients(alone, samples, loss))
    found, expected = (asyncio.run(each.train_step(samples, loss)).metrics for each in (backend, alone))
    assert found.keys() - {"rank_imbalance"} == expected.keys()
    for metric in expected.keys() - {"num_micro_batches"}:
        assert found[metric] == pytest.approx(expected[metric], rel=1e-5, abs=1e-6), metric


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("family", "layout"), CASES_OF_STEPS)
def test_ten_steps_equal_those_of_one_process(both, family, layout):
    backend, alone = both(f"{family}: {layout}")
    for step in range(10):
        samples = make_groups(step)
        found, expected = (
            asyncio.run(each.train_step(samples, PolicyLoss("vanilla"))).metrics for each in (backend, alone)
        )
        for name in ("loss", "grad_norm", "lr", "num_tokens"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    weights = dict(backend.weights())
    for name, value in on_cpu(alone.weights()):
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", LAYOUTS_OF_STEPS)
def test_a_process_without_samples_joins_collectives(both, layout):
    backend, alone = both(f"qwen3_moe: {layout}")
    samples = make_samples(1)
    loss = PolicyLoss("vanilla")
    assert_equal_gradients(gradients(backend, samples, loss), expected_gradients(alone, samples, loss))
    scores, own = (asyncio.run(each.score(samples)).logprobs for each in (backend, alone))
    assert scores[0] == pytest.approx(own[0], abs=2 * ROUNDING)


@pytest.mark.parametrize("layout", LAYOUTS_OF_STEPS)
def test_micro_batches_have_a_number_of_tokens(both, layout):
    budget = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 40, "ppo_micro_batch_size_per_gpu": None}
    backend, alone = both(f"qwen3_moe: {layout}", **budget)
    samples, loss = make_samples(12), PolicyLoss("vanilla")
    assert_equal_gradients(gradients(backend, samples, loss), expected_gradients(alone, samples, loss))
    found = asyncio.run(backend.train_step(samples, loss)).metrics
    assert found["num_micro_batches"] > 1


@pytest.mark.parametrize("num_samples", [1, 3, 5])
def test_each_number_of_micro_batches_passes_stages_of_several_parts(both, num_samples):
    """With one micro-batch per stage, Megatron-Core's stages would wait for each other."""
    backend, alone = both(f"deep: {PARTS[NUM_RANKS]}")
    steps = (each.train_step(make_samples(num_samples), PolicyLoss("vanilla")) for each in (backend, alone))
    found, expected = (asyncio.run(step).metrics for step in steps)
    for name in ("loss", "grad_norm", "num_tokens"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name


RECOMPUTED = {
    "all layers": {},
    "first layer": {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
    "first layer of a hybrid model": {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": 1,
        "hybrid_model": True,
    },
    "attention": {"recompute_granularity": "selective"},
    "groups of layers": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2},
    "modules": {"recompute_granularity": "selective", "recompute_modules": ["moe", "mlp", "core_attn"]},
    "shared experts": {"recompute_granularity": "selective", "recompute_modules": ["shared_experts"]},
}


@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputed_activations_give_the_same_gradients(both, name):
    layout = layout_of(LAYOUTS_OF_STEPS[0]) | RECOMPUTED[name]
    options = {"model": {"enable_gradient_checkpointing": name == "all layers"}, "megatron": layout}
    backend, alone = both("deepseek_v3: ", **options)
    samples, loss = make_samples(7), PolicyLoss("vanilla")
    assert_equal_gradients(gradients(backend, samples, loss), expected_gradients(alone, samples, loss))


def with_experts(samples: list[Sample], config) -> list[Sample]:
    """All samples but the first, with random experts for all tokens but the last two."""
    draw = torch.Generator().manual_seed(0)
    num_experts = getattr(config, "num_experts", None) or config.n_routed_experts
    found = samples[:1]
    for sample in samples[1:]:
        shape = (max(0, len(sample.token_ids) - 2), config.num_hidden_layers, num_experts)
        experts = torch.rand(shape, generator=draw).topk(config.num_experts_per_tok).indices.to(torch.uint8)
        found.append(replace(sample, routed_experts=experts))
    return found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("layout", [*LAYOUTS_OF_STEPS, f"{LAYOUTS_OF_STEPS[0]} hybrid"])
@pytest.mark.parametrize("family", [*EXPERTS, "normalized experts"])
def test_gradients_with_replayed_experts_equal_those_of_one_process(start, folders, family, layout, recompute):
    model = {"enable_gradient_checkpointing": recompute}
    request = replace(make_request(folders[family], layout, model=model), routed_by="rollout")
    backend, alone, loss = start(request), in_one_process(request), PolicyLoss("vanilla")
    samples = with_experts(make_samples(7), alone.model.config)
    found, free = gradients(backend, samples, loss), gradients(backend, make_samples(7), loss)
    assert any((found[name] - free[name]).norm() > 0.01 * free[name].norm() for name in found)
    assert_equal_gradients(found, expected_gradients(alone, samples, loss))


@pytest.mark.parametrize("name", ["no layers", *RECOMPUTED])
def test_values_are_kept_only_for_layers_that_are_recomputed(start, folders, monkeypatch, name):
    options = {**RECOMPUTED.get(name, {}), "moe_aux_loss_coeff": 0.1}
    model = {"enable_gradient_checkpointing": name == "all layers"}
    layout = layout_of(LAYOUTS_OF_STEPS[0]) | options
    request = replace(make_request(folders["deep deepseek_v3"], model=model, megatron=layout), routed_by="rollout")
    backend = start(request)
    from agentrl.backends.megatron.architecture.recomputed import PassValue

    kept: list[int] = []

    def recorded(value: PassValue, clear: Callable[[PassValue], None] = PassValue.clear) -> None:
        kept.append(len(value._kept))
        clear(value)

    monkeypatch.setattr(PassValue, "clear", recorded)
    config = make_model("deepseek_v3", num_hidden_layers=4).config
    step = asyncio.run(backend.train_step(with_experts(make_samples(7), config), PolicyLoss("vanilla")))
    assert step.metrics["num_micro_batches"] > 2
    assert kept
    assert not any(kept), kept


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", LAYOUTS_OF_STEPS)
def test_a_bfloat16_model_has_float32_masters_that_resume_exactly(start, tmp_path, layout):
    path = save_model(tmp_path / "model", "qwen3_moe", torch.bfloat16)
    request = make_request(path, layout, optim={"lr": 1e-4})  # smaller than the steps of bfloat16
    first, second = (start(request) for _ in range(2))
    for seed in range(4):
        asyncio.run(first.train_step(make_samples(5, seed), PolicyLoss("vanilla")))
    asyncio.run(first.save(tmp_path / "saved"))
    asyncio.run(second.load(tmp_path / "saved"))
    metrics = [
        asyncio.run(each.train_step(make_samples(5, 9), PolicyLoss("vanilla"))).metrics for each in (first, second)
    ]
    assert metrics[0] == metrics[1]
    for (name, value), (_, other) in zip(first.weights(), second.weights(), strict=True):
        assert torch.equal(value, other), name
        assert value.dtype == torch.bfloat16


def test_a_reference_copies_the_policy(start, folders):
    request = make_request(folders["qwen3_moe"], LAYOUTS_OF_STEPS[-1])
    policy, reference = (start(request) for _ in range(2))
    asyncio.run(policy.train_step(make_samples(3), PolicyLoss("vanilla")))
    weights = dict(on_cpu(policy.weights()))
    asyncio.run(reference.copy_weights(policy.weights()))
    assert all(torch.equal(value, weights[name]) for name, value in on_cpu(reference.weights()))
    other = in_one_process(request)
    asyncio.run(policy.copy_weights(other.weights()))
    weights = dict(on_cpu(policy.weights()))
    assert all(torch.equal(value, weights[name]) for name, value in on_cpu(other.weights()))


def without_experts(layout: str) -> str:
    return " ".join(word for word in layout.split() if not word.startswith(("ep", "etp")))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", LAYOUTS_OF_STEPS)
@pytest.mark.parametrize("family", ["qwen3", *EXPERTS, "glm4_moe"])
def test_weights_for_a_server_have_the_names_of_a_checkpoint(both, family, layout):
    layout = without_experts(layout) if family == "qwen3" else layout
    backend, alone = both(f"{family}: {layout}")
    found, expected = (dict(on_cpu(each.checkpoint_weights())) for each in (backend, alone))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    passing = backend.weights()
    assert passing.num_bytes() == sum(value.nbytes for _, value in passing.passing())


def test_a_closed_model_is_freed(ranks, start, folders):
    """After a backward pass, a mixture of experts is in a cycle through autograd, which Python cannot see."""
    backend = start(make_request(folders["qwen3_moe"], "tp2"), seed=0)
    asyncio.run(backend.train_step(make_samples(4), PolicyLoss("vanilla")))
    (model,) = ranks.held.values()
    chunk = weakref.ref(model.passes.chunks[0].module)
    del model
    asyncio.run(backend.close())
    gc.collect()
    assert chunk() is None


OTHER_LAYOUTS = {
    1: ("",),
    2: ("tp2", "pp2", "cp2", "dp", "ep2"),
    4: ("tp2 pp2", "tp2 cp2", "pp2 ep2"),
    8: ("tp2 pp2 cp2 ep2 etp1",),
}[NUM_RANKS]


@pytest.mark.parametrize("family", EXPERTS)
def test_a_checkpoint_loads_in_every_layout(start, folders, tmp_path, family):
    first = start(make_request(folders[family], OTHER_LAYOUTS[-1]), seed=0)
    loss = PolicyLoss("vanilla")
    asyncio.run(first.train_step(make_samples(4), loss))
    asyncio.run(first.save(tmp_path / "saved"))
    expected = asyncio.run(first.train_step(make_samples(4, 1), loss)).metrics
    asyncio.run(first.close())  # the next has another layout
    for layout in OTHER_LAYOUTS:
        other = start(make_request(folders[family], layout), seed=1)
        asyncio.run(other.load(tmp_path / "saved"))
        found = asyncio.run(other.train_step(make_samples(4, 1), loss)).metrics
        for name in ("loss", "grad_norm", "lr"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6), (layout, name)
        asyncio.run(other.close())


MATRIX, STEPS = (
    f"{__file__}::{test.__name__}"
    for test in (
        test_scores_gradients_and_weights_equal_those_of_one_process,
        test_ten_steps_equal_those_of_one_process,
    )
)
CORE = {
    "1": [f"{MATRIX}[{family}: ]" for family in ("qwen3", *EXPERTS)],
    "4": [
        f"{MATRIX}[qwen3: tp2 pp2]",
        *(f"{MATRIX}[{family}: tp2 pp2 ep2 etp1]" for family in EXPERTS),
        f"{STEPS}[deepseek_v3-tp2 ep2 etp1]",
    ],
}


@pytest.mark.parametrize("size", [pytest.param("1", marks=pytest.mark.nightly), "4"])
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_the_most_used_layouts_on_other_numbers_of_ranks(size):
    run_again(CORE[size][0], size, *CORE[size][1:])


PARTS_OF_TESTS = ("heads", "muon", "freezing", "offload", "shared_prefixes", "balancing", "hub", "skipped")
PARTS_OF_TESTS += ("recorded_routing", "prediction_training")
OTHER_FILES = [str(Path(__file__).with_name(f"test_megatron_{name}.py")) for name in PARTS_OF_TESTS]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1", "4"])
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_megatron_tests_pass_on_other_numbers_of_ranks(size):
    run_again(__file__, size, *OTHER_FILES)


@pytest.mark.slow
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_layouts_of_eight_ranks():
    run_again(MATRIX, "8", *(f"{STEPS}[{family}-tp2 pp2 cp2 ep2 etp1]" for family in EXPERTS))


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["1", "2", "4"])
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_megatron_tests_pass_on_gpus(size):
    run_again(__file__, size, *OTHER_FILES, device="cuda")
