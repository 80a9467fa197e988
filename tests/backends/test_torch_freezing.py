"""Frozen weights are found by name, and excluded from the optimizer and from weight sync."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from tiny_models import make_model, make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.backends.torch.freezing import fingerprint, freeze_modules
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.torch.loader import load_torch_engine
from agentrl.errors import ConfigError


def load(path: Path, *patterns: str, **model: object) -> TorchBackend:
    actor = ActorConfig.model_validate({"optim": {"lr": 1e-2}, "device": "cpu", "freeze_modules": patterns})
    return load_torch_backend(ModelConfig(path=str(path), **model), actor, total_updates=9, seed=0)


def frozen(*patterns: str, family: str = "llama") -> set[str]:
    model = make_model(family)
    freeze_modules(model, patterns)
    return {name for name, value in model.named_parameters() if not value.requires_grad}


def test_patterns_fit_parameters_and_the_modules_around_them():
    assert frozen("model.norm.weight") == frozen("model.norm") == frozen("*.norm") == {"model.norm.weight"}
    layer = frozen("model.layers.0")
    assert layer == frozen("model.layers.0.*") == frozen("*.layers.0")
    assert len(layer) == 9
    assert frozen("*.mlp.up_proj", "model.norm") == {
        "model.norm.weight",
        *(f"model.layers.{number}.mlp.up_proj.weight" for number in (0, 1)),
    }
    assert frozen() == set()


def test_tied_head_shares_the_embedding():
    tied = {"model.embed_tokens.weight"}
    assert frozen("lm_head", family="qwen3") == frozen("model.embed_tokens", family="qwen3") == tied
    assert frozen("lm_head") == {"lm_head.weight"}


@pytest.mark.parametrize(
    ("patterns", "complaint"),
    [
        (["model.layer.0"], "no module or weight is called 'model.layer.0': the nearest name is 'model.layers.0'"),
        (["model.norm", "*.mlpp.*"], "no module or weight is called '*.mlpp.*'"),
        (["*"], "freezes all weights"),
        (["model", "lm_head"], "freezes all weights"),
    ],
)
def test_patterns_that_match_no_or_all_modules(patterns: list[str], complaint: str):
    with pytest.raises(ConfigError) as caught:
        freeze_modules(make_model("llama"), patterns)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_frozen_weights_are_neither_changed_nor_published(tmp_path: Path):
    path = save_model(tmp_path)
    backend = load(path, "model.layers.0", "model.embed_tokens")
    before = {name: value.clone() for name, value in backend.model.state_dict().items()}
    asyncio.run(backend.train_step(make_samples(4), PolicyLoss("sft")))
    changed = {name for name, value in backend.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name, _ in backend.weights()}
    assert changed == {name for name in before if name.startswith(("model.layers.1.", "model.norm."))}

    async def published() -> dict[str, torch.Tensor]:
        engine = load_torch_engine(ModelConfig(path=str(path)), RolloutConfig(device="cpu", max_num_seqs=2), 32)
        await engine.load_weights(backend.weights(), 1)
        await engine.close()
        return engine.model.state_dict()

    theirs = asyncio.run(published())
    assert all(torch.equal(value, theirs[name]) for name, value in backend.model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["model.layers.0", "model.embed_tokens", "model.layers.1"])
def test_gradient_checkpointing_changes_no_gradient(pattern: str, tmp_path: Path):
    path = save_model(tmp_path, "llama")
    pair = [load(path, pattern, enable_gradient_checkpointing=on) for on in (False, True)]
    for backend in pair:
        asyncio.run(backend.train_step(make_samples(4), PolicyLoss("sft")))
    before = dict(make_model("llama").named_parameters())
    for (name, one), (_, other) in zip(pair[0].weights(), pair[1].weights(), strict=True):
        assert not torch.equal(one, before[name])
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_resuming_with_other_frozen_weights_is_refused(tmp_path: Path):
    first = load(save_model(tmp_path / "a"), "model.layers.0")
    asyncio.run(first.save(tmp_path / "step"))
    asyncio.run(load(tmp_path / "a", "model.layers.0").load(tmp_path / "step"))
    with pytest.raises(ConfigError, match="other weights were frozen"):
        asyncio.run(load(save_model(tmp_path / "b", seed=1), "model.layers.0").load(tmp_path / "step"))
    with pytest.raises(ConfigError, match="other weights were frozen"):
        asyncio.run(load(tmp_path / "a", "model.layers.1").load(tmp_path / "step"))


def test_fingerprint_differs_for_weights_and_dtypes():
    def of(seed: int = 0, dtype: torch.dtype = torch.float32) -> str:
        model = make_model("llama", seed).to(dtype)
        freeze_modules(model, ["model.norm", "model.layers.0"])
        return fingerprint(model)

    assert of() == of()
    assert len({of(), of(seed=1), of(dtype=torch.bfloat16), of(1, torch.bfloat16)}) == 4


def test_fingerprint_depends_on_positions():
    model = make_model("llama")
    freeze_modules(model, ["model.layers.0"])
    before, weight = fingerprint(model), model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        weight.copy_(weight.flip(0))
    swapped = fingerprint(model)
    with torch.no_grad():
        weight.copy_(weight.flip(0))
    assert swapped != before == fingerprint(model)
