"""megatron-bridge, an independent mapping, reads and writes the same weights."""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from bridge_oracle import differing, exported
from megatron_models import assert_equal_models, in_one_process, make_request
from rank_processes import run_again
from safetensors import safe_open
from tiny_models import make_model, make_samples, save_model
from transformers import AutoConfig

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.megatron.platform import prepare
from agentrl.config.megatron import MegatronConfig
from agentrl.errors import ConfigError

pytestmark = pytest.mark.megatron

DENSE, EXPERTS = ("llama", "qwen3"), ("qwen3_moe", "deepseek_v3")
FAMILIES = (*DENSE, "qwen2", *EXPERTS)
LAYOUTS = {
    1: {"": FAMILIES},
    2: {"tp2": FAMILIES, "pp2": (*DENSE, *EXPERTS), "ep2": EXPERTS, "tp2 ep2 etp1": EXPERTS},
    4: {"tp2 ep2 etp1": EXPERTS, "tp2 pp2": (*DENSE, *EXPERTS), "pp2 ep2": EXPERTS},
}
NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))
CASES = [f"{family}: {layout}" for layout, families in LAYOUTS[NUM_RANKS].items() for family in families]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    # the bridge exports the rows that pad a vocabulary to a multiple of the processes: this one needs none
    return {name: save_model(tmp_path_factory.mktemp(name), name, vocab_size=64) for name in FAMILIES}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES)
def test_the_bridge_loads_and_exports_the_same_weights(start, folders, case):
    family, layout = case.split(": ")
    backend = start(make_request(folders[family], layout))
    assert differing(backend, folders[family]) == []
    asyncio.run(backend.train_step(make_samples(3), PolicyLoss("vanilla")))
    weights, expected = dict(backend.checkpoint_weights()), exported(backend, folders[family])
    assert weights.keys() == expected.keys()
    assert [name for name, value in weights.items() if not torch.equal(value, expected[name])] == []


OTHERS = ("gemma", "mistral")
"""Families that only the bridge maps."""
LAYOUTS_OF_MODELS = {
    1: {"": OTHERS, "bridge": (*DENSE, *EXPERTS)},
    2: {
        "tp2": OTHERS,
        "pp2": ("gemma",),
        "cp2": ("gemma",),
        "dp": ("gemma",),
        "tp2 bridge": ("llama", *EXPERTS),
        "ep2 bridge": EXPERTS,
        "pp2 bridge": ("qwen3",),
    },
    4: {"tp2 pp2": OTHERS, "tp2 ep2 etp1 bridge": EXPERTS, "pp2 ep2 bridge": EXPERTS},
}[NUM_RANKS]


def save_other(path: Path, family: str) -> Path:
    model = make_model(family, sliding_window=None, tie_word_embeddings=family == "gemma")
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.add_(torch.randn(value.shape) / 4)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with a vocabulary that needs padding."""
    own = {name: save_model(tmp_path_factory.mktemp(name), name) for name in FAMILIES}
    return own | {name: save_other(tmp_path_factory.mktemp(name), name) for name in OTHERS}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [f"{each}: {layout}" for layout, of in LAYOUTS_OF_MODELS.items() for each in of])
def test_models_that_the_bridge_maps_equal_those_of_one_process(start, models, case):
    family, layout = case.split(": ")
    backend = start(make_request(models[family], layout))
    assert_equal_models(backend, in_one_process(make_request(models[family])))
    assert {name for name, _ in backend.checkpoint_weights()} == weight_names(models[family])


def weight_names(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


def test_a_checkpoint_of_a_model_of_the_bridge_loads_in_another_layout(start, models, tmp_path):
    loss, (one, other) = PolicyLoss("vanilla"), {1: ("", ""), 2: ("tp2", "pp2"), 4: ("tp2 pp2", "dp")}[NUM_RANKS]
    first = start(make_request(models["gemma"], one))
    asyncio.run(first.train_step(make_samples(4), loss))
    asyncio.run(first.save(tmp_path / "saved"))
    expected = asyncio.run(first.train_step(make_samples(4, 1), loss)).metrics
    asyncio.run(first.close())  # the next has another layout
    second = start(make_request(models["gemma"], other))
    asyncio.run(second.load(tmp_path / "saved"))
    found = asyncio.run(second.train_step(make_samples(4, 1), loss)).metrics
    for name in ("loss", "grad_norm", "lr"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize(
    ("family", "use", "complaint"),
    [
        (
            "gemma",
            False,
            "'actor.megatron.use_mbridge=false': a model of type 'gemma' needs megatron-bridge: remove this key",
        ),
        ("gemma", None, "a model of type 'gemma' needs megatron-bridge 0.0.1: see docs/megatron.md"),
        ("qwen3", True, "'actor.megatron.use_mbridge=true' needs megatron-bridge 0.0.1: see docs/megatron.md"),
    ],
)
def test_a_bridge_that_is_not_installed_is_named(models, monkeypatch, family, use, complaint):
    prepare()
    from agentrl.backends.megatron import bridge  # after `prepare`

    monkeypatch.setattr(bridge, "SUPPORTED", "0.0.1")
    with pytest.raises(ConfigError, match=f"^{complaint}"):
        bridge.auto_bridge(AutoConfig.from_pretrained(models[family]), MegatronConfig(use_mbridge=use), "model.path")


def test_stand_ins_for_transformer_engine_do_not_stay(start, models):
    start(make_request(models["gemma"]))
    assert find_spec("transformer_engine") is None


def test_what_the_bridge_does_not_map_is_refused(start, tmp_path):
    path = save_model(tmp_path, "glm4_moe")
    with pytest.raises(ConfigError, match=r"use_mbridge'.* no mapping for the parameter 'decoder\..*local_experts"):
        start(make_request(path, "bridge"))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1", "4"])
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_bridge_tests_pass_on_other_numbers_of_ranks(size):
    run_again(__file__, size)
