"""`actor.megatron.mtp_loss_scaling_factor` trains the layers for multi-token prediction, and nothing else."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bridge_oracle import differing, exported
from megatron_models import assert_equal_gradients, gradients, in_one_process, layout_of, make_request
from prediction_layers import Ahead, loaded_layers, names_of, prediction_loss, save_with_layers
from safetensors.torch import load_file, save_file
from test_megatron import OTHER_LAYOUTS, RECOMPUTED, with_experts
from tiny_models import make_samples
from torch import Tensor

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import ModelRequest
from agentrl.errors import ConfigError
from agentrl.types.sample import Sample

pytestmark = pytest.mark.megatron

NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))
PROJECTION = "model.layers.2.eh_proj.weight"
FACTOR = 0.3
LOSS = PolicyLoss("vanilla")
LAYOUTS = {
    1: ("",),
    2: ("tp2", "pp2", "ep2", "dp", "tp2 ep2 etp1", "cp2", "tp2 hybrid", "pp2 hybrid", "ep2 allgather", "tp2 bridge"),
    4: ("tp2 pp2", "pp2 ep2", "tp2 ep2 etp1", "tp2 pp2 ep2 etp1", "pp2 cp2", "ep2 bridge"),
}[NUM_RANKS]

COPIES = {1: "", 2: "ep2", 4: "pp2 ep2"}[NUM_RANKS]
"""A layout with data-parallel processes."""


def request_of(path: Path, layout: str, factor: float = FACTOR, **options: object) -> ModelRequest:
    megatron = layout_of(layout) | {"mtp_loss_scaling_factor": factor} | dict(options.pop("megatron", {}))
    return make_request(path, megatron=megatron, **options)


def reference(path: Path, layers: list[Ahead], samples) -> tuple[dict[str, Tensor], float]:
    """The gradients of the layers, under their names in memory, and the loss without the factor."""
    model = in_one_process(make_request(path)).model
    loss = prediction_loss(model, layers, samples)
    (FACTOR * loss).backward()
    first = model.config.num_hidden_layers
    found = {name: value.grad for at, layer in enumerate(layers) for name, value in names_of(layer, first + at).items()}
    return found, float(loss.detach())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", [1, 2])
def test_gradients_are_those_of_plain_torch_and_others_do_not_change(start, tmp_path, layout, number):
    layers, samples = save_with_layers(tmp_path, number=number), make_samples(7)
    expected, _ = reference(tmp_path, layers, samples)
    found = gradients(start(request_of(tmp_path, layout)), samples, LOSS)
    assert_equal_gradients(found, expected)
    without = gradients(start(request_of(tmp_path, layout, 0.0)), samples, LOSS)
    assert found.keys() == without.keys() | expected.keys()
    assert_same(found, without)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit-identical gradients. Sums over more than two processes depend on the place in the buffer of gradients."""
    rounding = 2e-6 if NUM_RANKS > 2 else 0.0
    for name, value in expected.items():
        assert not (found[name] - value).norm() > rounding * value.norm(), name  # biases of routers have NaN


OTHERS = {
    1: {"glm4_moe": "", "four layers": ""},
    2: {"glm4_moe": "tp2 ep2 etp1", "four layers": "pp2 vpp2"},
    4: {"glm4_moe": "pp2 cp2", "four layers": "tp2 pp2 vpp2"},
}[NUM_RANKS]


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_and_layouts_have_the_gradients_of_plain_torch(start, tmp_path, name):
    options = {"num_hidden_layers": 4} if name == "four layers" else {}
    family = "deepseek_v3" if options else name
    layers, samples = save_with_layers(tmp_path, family, **options), make_samples(7)
    expected, _ = reference(tmp_path, layers, samples)
    assert_equal_gradients(gradients(start(request_of(tmp_path, OTHERS[name])), samples, LOSS), expected)


SAVING = {
    **{name: {"megatron": layout} for name, layout in RECOMPUTED.items() if layout},
    "all layers": {"model": {"enable_gradient_checkpointing": True}},
    "offload": {"param_offload": True, "optimizer_offload": True},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", SAVING)
def test_options_that_save_memory_give_the_same_gradients(start, tmp_path, name):
    layers, samples = save_with_layers(tmp_path), make_samples(7)
    expected, _ = reference(tmp_path, layers, samples)
    request = request_of(tmp_path, LAYOUTS[0], **SAVING[name])
    assert_equal_gradients(gradients(start(request), samples, LOSS), expected)


MINI_BATCHES = {
    "one sample": (make_samples(1), LOSS),
    "two passes": (make_samples(7), PolicyLoss("kl_cov")),  # the loss needs all samples
}
MINI_BATCHES |= {"sums in the backward pass": (make_samples(5), LOSS)} if NUM_RANKS > 1 else {}


@pytest.mark.parametrize("name", MINI_BATCHES)
def test_processes_with_other_samples_give_the_same_gradients(start, tmp_path, name):
    """With one sample, the other process has none."""
    layers, (samples, loss) = save_with_layers(tmp_path), MINI_BATCHES[name]
    expected, _ = reference(tmp_path, layers, samples)
    overlap = {"overlap_grad_reduce": name == "sums in the backward pass"}
    request = request_of(tmp_path, COPIES, megatron=overlap)
    assert_equal_gradients(gradients(start(request), samples, loss), expected)


def test_tokens_that_no_layer_predicts_have_no_loss(start, tmp_path):
    """The second token of a sample: the layer needs two tokens before it."""
    save_with_layers(tmp_path)
    samples = [Sample([3, 4], [0, 1], [1.0, 1.0], [0.0, 1.0], behaviour_logprobs=[0.0, -4.0])]
    backend = start(request_of(tmp_path, COPIES))
    found = gradients(backend, samples, LOSS)
    assert [name for name, value in found.items() if "layers.2." in name and value.nan_to_num().any()] == []
    assert asyncio.run(backend.train_step(samples, LOSS)).metrics["mtp_loss"] == 0.0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_a_checkpoint_has_the_trained_layers_under_their_names(start, tmp_path, layout):
    """The copies of embedding and head are those of the model, also on the last stage of a pipeline."""
    source, saved = tmp_path / "source", tmp_path / "saved"
    save_with_layers(source)
    backend = start(request_of(source, layout))
    for step in range(2):
        asyncio.run(backend.train_step(make_samples(5, step), LOSS))
    asyncio.run(backend.save(saved))
    before, after = (load_file(folder / "model.safetensors") for folder in (source, saved))
    assert after.keys() == before.keys()
    assert [name for name in after if torch.equal(before[name], after[name]) and "bias" not in name] == []
    for name, copied in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        assert torch.equal(after[f"model.layers.2.{name}.weight"], after[f"{copied}.weight"])
    assert {name for name, _ in backend.checkpoint_weights()} == {name for name in after if "layers.2." not in name}
    assert not any("layers.2." in name for name, _ in backend.weights())
    samples = make_samples(7, 2)
    expected, loss = reference(saved, loaded_layers(saved, "deepseek_v3"), samples)
    assert_equal_gradients(gradients(backend, samples, LOSS), expected)
    assert asyncio.run(backend.train_step(samples, LOSS)).metrics["mtp_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_resumes_in_every_layout(start, tmp_path, dtype):
    save_with_layers(tmp_path / "source", dtype=dtype)
    first = start(request_of(tmp_path / "source", OTHER_LAYOUTS[-1]))
    asyncio.run(first.train_step(make_samples(4), LOSS))
    asyncio.run(first.save(tmp_path / "saved"))
    expected = asyncio.run(first.train_step(make_samples(4, 1), LOSS)).metrics
    asyncio.run(first.save(tmp_path / "next"))
    weights = load_file(tmp_path / "next/model.safetensors")
    asyncio.run(first.close())  # the next has another layout
    for layout in OTHER_LAYOUTS[::-1]:
        other = start(request_of(tmp_path / "source", layout), seed=1)
        asyncio.run(other.load(tmp_path / "saved"))
        found = asyncio.run(other.train_step(make_samples(4, 1), LOSS)).metrics
        asyncio.run(other.save(tmp_path / layout))
        asyncio.run(other.close())
        if layout == OTHER_LAYOUTS[-1]:
            assert found == expected
            own = load_file(tmp_path / layout / "model.safetensors")
            assert [name for name, value in own.items() if not torch.equal(value, weights[name])] == []
        elif dtype == torch.float32:
            for name in ("loss", "grad_norm", "mtp_loss"):
                assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6), (layout, name)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_clipping_of_one_loss_does_not_change_the_other(start, tmp_path, name):
    """The norm of the gradients of these layers is their own."""
    save_with_layers(tmp_path / "source")
    optim = {"name": name, "lr": 1e-2, "eps": 1e-3} | ({"muon_lr": 1e-2} if name == "muon" else {})
    saved, metrics = {}, {}
    for factor in (0.0, 1e3, 1e4):
        request = request_of(tmp_path / "source", COPIES, factor, grad_clip=1e-2, optim=optim)
        backend = start(request)
        metrics[factor] = asyncio.run(backend.train_step(make_samples(5), LOSS)).metrics
        asyncio.run(backend.save(tmp_path / str(factor)))
        saved[factor] = load_file(tmp_path / str(factor) / "model.safetensors")
    assert metrics[1e3] == metrics[1e4]
    for key, value in metrics[0.0].items():  # the norm adds the values in another order
        assert metrics[1e3][key] == pytest.approx(value, rel=1e-6), key
    for key, value in saved[1e3].items():
        torch.testing.assert_close(value, saved[1e4][key], rtol=1e-4, atol=1e-6)
        if "layers.2." not in key:
            torch.testing.assert_close(value, saved[0.0][key], rtol=1e-5, atol=1e-7)
    assert (saved[1e3][PROJECTION] - saved[0.0][PROJECTION]).norm() > 0


def test_an_overflow_of_this_loss_does_not_stop_the_policy(start, tmp_path):
    save_with_layers(tmp_path / "source")
    saved = {}
    for factor in (0.0, 1e38):
        backend = start(request_of(tmp_path / "source", COPIES, factor))
        assert asyncio.run(backend.train_step(make_samples(5), LOSS)).metrics["skipped_updates"] == 0
        asyncio.run(backend.save(tmp_path / str(factor)))
        saved[factor] = load_file(tmp_path / str(factor) / "model.safetensors")
    for key, value in saved[0.0].items():
        if "layers.2." not in key:
            torch.testing.assert_close(saved[1e38][key], value, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(saved[1e38][PROJECTION], saved[0.0][PROJECTION], rtol=1e-4, atol=0)  # weight decay


def test_recorded_experts_are_those_of_the_model(start, tmp_path):
    """The routers of these layers choose for themselves, so the gradients of the model do not change."""
    save_with_layers(tmp_path)
    config = in_one_process(make_request(tmp_path)).model.config
    samples = with_experts(make_samples(7), config)
    requests = [replace(request_of(tmp_path, LAYOUTS[0], factor), routed_by="rollout") for factor in (FACTOR, 0.0)]
    found, without = (gradients(start(request), samples, LOSS) for request in requests)
    assert_same(found, without)


def test_a_reference_and_a_critic_do_not_have_these_layers(start, tmp_path):
    save_with_layers(tmp_path)
    policy, reference = (start(replace(request_of(tmp_path, LAYOUTS[0]), trainable=each)) for each in (True, False))
    critic = start(replace(request_of(tmp_path, LAYOUTS[0]), value_head=True))
    asyncio.run(policy.train_step(make_samples(3), LOSS))
    asyncio.run(reference.copy_weights(policy.weights()))
    weights = dict(policy.weights())
    assert all(torch.equal(value, weights[name]) for name, value in reference.weights())
    for model in (reference, critic):
        assert not any("layers.2." in name for name in model._model.weights.saved_names)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", {1: ("",), 2: ("tp2", "pp2", "ep2"), 4: ("tp2 ep2 etp1", "pp2 ep2")}[NUM_RANKS])
def test_the_bridge_loads_and_exports_the_same_layers(start, tmp_path, layout):
    source, saved = tmp_path / "source", tmp_path / "saved"
    save_with_layers(source, number=2, vocab_size=64)  # the bridge exports rows that pad the vocabulary
    backend = start(request_of(source, layout))
    assert differing(backend, source) == []
    asyncio.run(backend.train_step(make_samples(3), LOSS))
    asyncio.run(backend.save(saved))
    weights, expected = load_file(saved / "model.safetensors"), exported(backend, source)
    copies = {name for name in weights if ".layers." in name and name.endswith(("embed_tokens.weight", "head.weight"))}
    assert weights.keys() - copies == expected.keys() - copies
    assert [name for name, value in expected.items() if not torch.equal(value, weights[name])] == []


@pytest.mark.parametrize("factor", [FACTOR, 0.0])
def test_a_run_does_not_resume_with_other_layers(start, tmp_path, factor):
    save_with_layers(tmp_path / "source")
    first, other = (start(request_of(tmp_path / "source", COPIES, each)) for each in (factor, FACTOR - factor))
    asyncio.run(first.train_step(make_samples(3), LOSS))
    asyncio.run(first.save(tmp_path / "saved"))
    with pytest.raises(ConfigError, match=f"mtp_loss_scaling_factor' must stay {'above 0' if factor else '0'}"):
        asyncio.run(other.load(tmp_path / "saved"))


def test_a_folder_without_the_weights_is_refused(start, tmp_path):
    save_with_layers(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if "layers.2." not in name}, file)
    with pytest.raises(ConfigError, match=r"the weight 'model\.layers\.2\..*' is missing"):
        start(request_of(tmp_path, LAYOUTS[0]))
