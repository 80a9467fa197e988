"""Critics and reward models in a parallel layout equal those of the torch backend in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_models import (
    assert_equal_gradients,
    expected_gradients,
    gradients,
    in_one_process,
    make_request,
    save_variant,
)
from test_megatron import LAYOUTS_OF_STEPS, NUM_RANKS, OTHER_LAYOUTS
from test_torch_heads import with_a_head
from tiny_models import make_samples, save_model, with_returns
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from agentrl.algos.losses.value import ValueLoss
from agentrl.backends.base import ModelRequest
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.backends.torch.backend import TorchBackend
from agentrl.errors import ConfigError

pytestmark = pytest.mark.megatron

EVERY = ("qwen3", "qwen3_moe", "deepseek_v3")
LAYOUTS = {
    1: {"": (*EVERY, "llama")},
    2: {
        "tp2": (*EVERY, "llama"),
        "tp2 without_sp": ("qwen3",),
        "pp2": EVERY,
        "cp2": EVERY,
        "ep2": ("qwen3_moe", "deepseek_v3"),
        "dp": ("qwen3",),
        "dp replicated": ("qwen3",),
        "tp2 ep2 etp1": ("qwen3_moe",),
        "pp2 vpp2": ("deep",),
    },
    4: {
        "tp2 pp2": EVERY,
        "pp2 ep2": ("qwen3_moe", "deepseek_v3"),
        "tp2 pp2 ep2 etp1": ("deepseek_v3",),
        "tp2 cp2": EVERY,
        "pp2 cp2": ("qwen3",),
        "tp2 dp": ("qwen3",),
    },
}
CASES = [f"{family}: {layout}" for layout, families in LAYOUTS[NUM_RANKS].items() for family in families]
LOSS = ValueLoss(cliprange_value=10)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints with a random head, without and with a bias."""
    found = {name: with_a_head(tmp_path_factory.mktemp(name), name) for name in (*EVERY, "llama")}
    language = save_variant(tmp_path_factory.mktemp("deep"), "deep")
    for name, kind in (("deep", AutoModelForSequenceClassification), ("bias", AutoModelForTokenClassification)):
        model = kind.from_pretrained(language, num_labels=1)
        with torch.no_grad():
            for value in model.parameters():
                value.div_(4 if value.ndim == 2 else 1)  # four layers of larger weights round more than the tolerance
            for value in model.score.parameters():
                value.normal_()
        found[name] = tmp_path_factory.mktemp(f"{name}_head")
        model.save_pretrained(found[name])
    return found


def request_for(path: Path, layout: str, **options: object) -> ModelRequest:
    return replace(make_request(path, layout, **options), value_head=True)


@pytest.fixture
def both(start, folders) -> Callable[..., tuple[MegatronBackend, TorchBackend]]:
    """Starts a model in a layout, and in one process."""

    def start_both(case: str) -> tuple[MegatronBackend, TorchBackend]:
        family, layout = case.split(": ")
        request = request_for(folders[family], layout)
        return start(request), in_one_process(request)

    return start_both


def assert_equal_values(backend: MegatronBackend, alone: TorchBackend) -> None:
    samples = make_samples(7, 5)
    found, expected = (asyncio.run(each.score(samples)) for each in (backend, alone))
    assert found.logprobs == found.entropy == []
    for own, theirs in zip(found.values, expected.values, strict=True):
        assert own == pytest.approx(theirs, rel=4e-6, abs=4e-5)  # of about 30


def assert_equal_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [*CASES, *(f"bias: {layout}" for layout in LAYOUTS_OF_STEPS if "ep" not in layout)])
def test_values_gradients_and_weights_equal_those_of_one_process(both, case):
    backend, alone = both(case)
    assert_equal_weights(dict(backend.weights()), dict(alone.weights()))
    assert_equal_weights(dict(backend.checkpoint_weights()), dict(alone.checkpoint_weights()))
    assert_equal_values(backend, alone)
    samples = with_returns(make_samples(7))
    assert_equal_gradients(gradients(backend, samples, LOSS), expected_gradients(alone, samples, LOSS))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", LAYOUTS_OF_STEPS)
def test_ten_steps_of_a_new_head_equal_those_of_one_process(start, tmp_path, layout):
    request = request_for(save_model(tmp_path, "qwen3_moe"), layout)
    backend, alone = start(request), in_one_process(request)
    values = asyncio.run(backend.score(make_samples(4))).values
    assert values == [[0.0] * len(sample.token_ids) for sample in make_samples(4)]
    for step in range(10):
        samples = with_returns(make_samples(6, step))
        found, expected = (asyncio.run(each.train_step(samples, LOSS)).metrics for each in (backend, alone))
        assert found.keys() - {"rank_imbalance"} == expected.keys()
        for name in expected.keys() - {"num_micro_batches"}:
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name
    weights = dict(backend.weights())
    for name, value in alone.weights():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["bias", "deepseek_v3"])
def test_a_checkpoint_loads_in_transformers_and_in_every_layout(start, folders, tmp_path, family):
    layouts = [layout.replace("ep2", "dp") if family == "bias" else layout for layout in OTHER_LAYOUTS]
    first = start(request_for(folders[family], layouts[-1]))
    asyncio.run(first.train_step(with_returns(make_samples(4)), LOSS))
    asyncio.run(first.save(tmp_path / "saved"))
    weights = dict(first.weights())
    kind = AutoModelForTokenClassification if family == "bias" else AutoModelForSequenceClassification
    loaded = kind.from_pretrained(tmp_path / "saved")
    assert (type(loaded).__name__,) == (*loaded.config.architectures,)
    assert loaded.config.num_labels == 1
    assert_equal_weights(weights, loaded.state_dict())
    frozen = in_one_process(replace(request_for(tmp_path / "saved", ""), trainable=False))
    assert_equal_weights(weights, dict(frozen.weights()))
    expected = asyncio.run(first.train_step(with_returns(make_samples(4, 1)), LOSS)).metrics
    asyncio.run(first.close())  # the next has another layout
    for layout in layouts:
        other = start(request_for(folders[family], layout), seed=1)
        asyncio.run(other.load(tmp_path / "saved"))
        found = asyncio.run(other.train_step(with_returns(make_samples(4, 1)), LOSS)).metrics
        for name in ("loss", "grad_norm", "lr"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6), (layout, name)
        asyncio.run(other.close())


def test_a_frozen_model_reads_a_checkpoint_of_the_torch_backend(start, folders, tmp_path):
    request = request_for(folders["llama"], LAYOUTS_OF_STEPS[0])
    alone = in_one_process(request)
    asyncio.run(alone.train_step(with_returns(make_samples(3)), LOSS))
    asyncio.run(alone.save(tmp_path / "torch"))
    frozen = start(replace(request, trainable=False))
    asyncio.run(frozen.load(tmp_path / "torch"))
    assert_equal_weights(dict(frozen.weights()), dict(alone.weights()))
    assert_equal_values(frozen, alone)


def test_weights_are_copied_from_both_backends(start, folders, tmp_path):
    request = request_for(folders["qwen3"], LAYOUTS_OF_STEPS[0])
    first, second, alone = start(request), start(request), in_one_process(request)
    for each in (first, alone):
        asyncio.run(each.train_step(with_returns(make_samples(3)), LOSS))
        asyncio.run(second.copy_weights(each.weights()))
        assert_equal_weights(dict(second.weights()), dict(each.weights()))


def test_a_checkpoint_of_a_policy_is_refused(start, folders, tmp_path):
    AutoModelForCausalLM.from_pretrained(folders["llama"]).save_pretrained(tmp_path)
    critic = start(request_for(folders["llama"], LAYOUTS_OF_STEPS[0]))
    policy = start(make_request(tmp_path, LAYOUTS_OF_STEPS[0]))
    asyncio.run(policy.save(tmp_path / "policy"))
    with pytest.raises(ConfigError, match=r"'score\.weight' is missing"):
        asyncio.run(critic.load(tmp_path / "policy"))


def test_a_model_with_several_labels_is_refused(start, folders, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(
        folders["llama"], num_labels=3, ignore_mismatched_sizes=True
    )
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has 3 labels, but a value or reward model needs one"):
        start(request_for(tmp_path, LAYOUTS_OF_STEPS[0]))
