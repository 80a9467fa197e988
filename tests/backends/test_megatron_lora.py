"""LoRA in a parallel layout equals peft's in one process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch
from megatron_models import (
    assert_equal_gradients,
    expected_gradients,
    gradients,
    in_one_process,
    make_request,
)
from rank_processes import ROUNDING, run_again
from safetensors.torch import load_file
from tiny_models import make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.errors import ConfigError

pytestmark = pytest.mark.megatron

LORA = {"lora_rank": 4, "lora_alpha": 16}
OF_EXPERTS = ("gate_proj", "up_proj", "down_proj")
LOSS = PolicyLoss("vanilla")
DENSE, EXPERTS = ("qwen3", "qwen2"), ("qwen3_moe", "deepseek_v3")
LAYOUTS = {
    1: {"": (*DENSE, *EXPERTS, "gemma")},
    2: {
        "tp2": (*DENSE, *EXPERTS, "gemma"),
        "tp2 without_sp": ("qwen3",),
        "pp2": ("qwen3", "deepseek_v3"),
        "cp2": ("qwen3",),
        "ep2": EXPERTS,
        "dp": ("qwen3",),
        "dp replicated": ("qwen3",),
        "tp2 ep2 etp1": EXPERTS,
        "tp2 bridge": ("qwen3", "deepseek_v3"),
    },
    4: {"tp2 pp2": ("qwen3", *EXPERTS), "tp2 ep2 etp1": EXPERTS, "pp2 ep2": EXPERTS},
}
NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))
CASES = [f"{family}: {layout}" for layout, families in LAYOUTS[NUM_RANKS].items() for family in families]
FIRST, OTHER = {1: ("", ""), 2: ("tp2", "pp2"), 4: ("tp2 pp2", "pp2 cp2")}[NUM_RANKS]


def lora(family: str) -> dict[str, object]:
    """Options of an adapter. For DeepSeek-V3, peft adapts the stacked experts in place of these modules."""
    return {**LORA, "exclude_modules": OF_EXPERTS} if family == "deepseek_v3" else LORA


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save_model(tmp_path_factory.mktemp(name), name) for name in (*DENSE, *EXPERTS, "gemma")}


@pytest.fixture(scope="module")
def adapters(folders, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters that the torch backend has trained, so that no B is 0."""
    found = {}
    for family, path in folders.items():
        backend = in_one_process(make_request(path, model=lora(family)))
        asyncio.run(backend.train_step(make_samples(4), PolicyLoss("sft")))
        found[family] = tmp_path_factory.mktemp(family) / "adapter"
        asyncio.run(backend.save(found[family]))
    return found


def scores_of(backend, samples) -> list[list[float]]:
    return asyncio.run(backend.score(samples)).logprobs


def assert_near(found: list[list[float]], expected: list[list[float]]) -> None:
    for own, theirs in zip(found, expected, strict=True):
        assert own == pytest.approx(theirs, abs=2 * ROUNDING)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES)
def test_scores_gradients_and_weights_of_an_adapter_equal_those_of_peft(start, folders, adapters, case):
    family, layout = case.split(": ")
    model = {"lora_adapter_path": str(adapters[family])}
    backend, alone = (
        start(make_request(folders[family], layout, model=model)),
        in_one_process(make_request(folders[family], model=model)),
    )
    samples = make_samples(7)
    assert_near(scores_of(backend, samples), scores_of(alone, samples))
    base, expected = (asyncio.run(each.reference_score()(samples)).logprobs for each in (backend, alone))
    assert_near(base, expected)
    assert max(abs(a - b) for a, b in zip(base[0], scores_of(alone, samples)[0], strict=True)) > 1e-3
    assert_equal_gradients(gradients(backend, samples, LOSS), expected_gradients(alone, samples, LOSS))
    published, theirs = dict(backend.weights()), dict(alone.weights())
    assert [*published] == [*theirs]
    assert all(torch.equal(value, theirs[name]) for name, value in published.items())
    merged, theirs = dict(backend.checkpoint_weights()), dict(alone.checkpoint_weights())
    assert merged.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in merged.items())


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3"])
def test_a_trained_adapter_is_saved_in_the_format_of_peft(start, folders, tmp_path, family):
    path = folders[family]
    first = start(make_request(path, FIRST, model=lora(family)))
    plain, samples = in_one_process(make_request(path)), make_samples(5)
    assert_near(scores_of(first, samples), scores_of(plain, samples))  # B is 0
    for seed in range(3):
        asyncio.run(first.train_step(make_samples(4, seed), LOSS))
    asyncio.run(first.save(tmp_path / "step"))
    expected, metrics = scores_of(first, samples), asyncio.run(first.train_step(make_samples(4, 9), LOSS)).metrics
    assert {file.name for file in (tmp_path / "step").iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors", "trainer_state")
    }
    model = {"lora_adapter_path": str(tmp_path / "step")}
    for alone in (in_one_process(make_request(path, model=model)), in_one_process(make_request(tmp_path / "step"))):
        assert_near(scores_of(alone, samples), expected)
    asyncio.run(first.close())  # the next has another layout
    second = start(make_request(path, OTHER, model=lora(family)), seed=1)
    asyncio.run(second.load(tmp_path / "step"))
    assert_near(scores_of(second, samples), expected)
    found = asyncio.run(second.train_step(make_samples(4, 9), LOSS)).metrics
    for name in ("loss", "grad_norm", "lr"):
        assert found[name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-6), name


def test_a_new_adapter_is_the_same_in_every_layout(start, folders, tmp_path):
    values = []
    for number, layout in enumerate((FIRST, OTHER)):
        backend = start(make_request(folders["qwen3"], layout, model=LORA))
        asyncio.run(backend.save(tmp_path / str(number)))
        asyncio.run(backend.close())
        values.append(load_file(tmp_path / str(number) / "adapter_model.safetensors"))
    assert values[0].keys() == values[1].keys()
    assert all(torch.equal(value, values[1][name]) for name, value in values[0].items())
    for name, value in values[0].items():
        assert value.any() == (".lora_A." in name)


@pytest.mark.parametrize("layout", [FIRST, OTHER])
def test_recomputed_layers_give_adapters_the_same_gradients(start, folders, adapters, layout):
    model = {"lora_adapter_path": str(adapters["qwen3"]), "enable_gradient_checkpointing": True}
    backend = start(make_request(folders["qwen3"], layout, model=model))
    alone, samples = in_one_process(make_request(folders["qwen3"], model=model)), make_samples(7)
    assert_equal_gradients(gradients(backend, samples, LOSS), expected_gradients(alone, samples, LOSS))


def test_chosen_modules_of_a_bfloat16_model_are_trained_in_float32(start, tmp_path):
    path = save_model(tmp_path / "model", "qwen3", torch.bfloat16)
    model = {**LORA, "target_modules": ["k_proj", "down_proj"]}
    backend, alone = start(make_request(path, FIRST, model=model)), in_one_process(make_request(path, model=model))
    before = dict(backend.weights())
    assert before.keys() == dict(alone.weights()).keys()
    for seed in range(2):
        asyncio.run(backend.train_step(make_samples(4, seed), LOSS))
    for name, value in backend.weights():
        assert value.dtype == torch.float32
        assert ".lora_A." in name or not torch.equal(value, before[name])


def test_adapters_of_experts_are_refused(start, folders):
    complaint = (
        r"no adapter for 'model\.layers\.1\.mlp\.experts.*': name gate_proj, up_proj and down_proj in 'model.excl"
    )
    with pytest.raises(ConfigError, match=complaint):
        start(make_request(folders["deepseek_v3"], FIRST, model=LORA))


def test_a_checkpoint_of_whole_weights_is_refused(start, folders, tmp_path):
    whole, adapted = (start(make_request(folders["qwen3"], FIRST, model=model)) for model in ({}, LORA))
    for backend, name in ((whole, "whole"), (adapted, "adapted")):
        asyncio.run(backend.save(tmp_path / name))
    with pytest.raises(ConfigError, match="it holds whole weights, but this run trains a LoRA adapter"):
        asyncio.run(adapted.load(tmp_path / "whole"))
    with pytest.raises(ConfigError, match="it holds a LoRA adapter, but this run trains whole weights"):
        asyncio.run(whole.load(tmp_path / "adapted"))


@pytest.mark.parametrize(
    ("base", "model", "complaint"),
    [("other", LORA, "other weights were frozen"), ("qwen3", {**LORA, "lora_rank": 2}, "but this run has 2")],
)
def test_an_adapter_of_another_base_or_size_is_refused(start, folders, tmp_path, base, model, complaint):
    first = start(make_request(folders["qwen3"], FIRST, model=LORA))
    asyncio.run(first.save(tmp_path / "saved"))
    path = folders.get(base) or save_model(tmp_path / "other", seed=1)
    other = start(make_request(path, FIRST, model=model))
    with pytest.raises(ConfigError, match=complaint):
        asyncio.run(other.load(tmp_path / "saved"))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1", "4"])
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_lora_tests_pass_on_other_numbers_of_ranks(size):
    run_again(__file__, size)
