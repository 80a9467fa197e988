"""LoRA training: published and saved weights, the reference without the adapter, and the engine's log-probabilities."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tiny_models import make_samples, save_model
from transformers import AutoModelForCausalLM

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.torch.loader import load_torch_engine
from agentrl.errors import ConfigError
from agentrl.types.sample import Sample

SFT = PolicyLoss("sft")
LORA = {"lora_rank": 4, "lora_alpha": 16}


def configured(path: Path, **model: object) -> ModelConfig:
    return ModelConfig.model_validate({"path": str(path), **model})


def load(path: Path, model: dict[str, object] | None = None, **actor: object) -> TorchBackend:
    config = ActorConfig.model_validate({"optim": {"lr": 3e-2}, "device": "cpu", **actor})
    return load_torch_backend(configured(path, **(LORA if model is None else model)), config, total_updates=9, seed=0)


def train(backend: TorchBackend, num_updates: int) -> None:
    for seed in range(num_updates):
        asyncio.run(backend.train_step(make_samples(4, seed), SFT))


def scores(backend: TorchBackend) -> list[list[float]]:
    return asyncio.run(backend.score(make_samples(5))).logprobs


def base_scores(backend: TorchBackend) -> list[list[float]]:
    return asyncio.run(backend.reference_score()(make_samples(5))).logprobs


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt_neox", "gpt2", "qwen3_moe"])
def test_the_reference_is_the_base_and_the_first_step_starts_there(family: str, tmp_path: Path):
    path = save_model(tmp_path, family)
    backend, plain = load(path), load(path, {})
    assert scores(backend) == base_scores(backend) == scores(plain)
    assert plain.reference_score() is None
    train(backend, 2)
    assert base_scores(backend) == scores(plain)
    assert scores(backend) != scores(plain)


@pytest.mark.slow
def test_scoring_the_base_does_not_affect_training(tmp_path: Path):
    path = save_model(tmp_path)
    one, other = load(path), load(path)
    train(one, 2)
    for seed in range(2):
        base_scores(other)
        asyncio.run(other.train_step(make_samples(4, seed), SFT))
    for (_, mine), (_, theirs) in zip(one.weights(), other.weights(), strict=True):
        assert torch.equal(mine, theirs)


def test_only_adapters_are_trained_published_and_saved(tmp_path: Path):
    path = save_model(tmp_path / "base")
    backend = load(path)
    before = {name: value.clone() for name, value in backend.model.state_dict().items()}
    train(backend, 3)
    published = dict(backend.weights())
    assert published.keys() == {name for name in before if ".lora_" in name}
    changed = {name for name, value in backend.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == published.keys()
    asyncio.run(backend.save(tmp_path / "step"))
    files = {str(file.relative_to(tmp_path / "step")) for file in (tmp_path / "step").rglob("*") if file.is_file()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", "trainer_state/state.pt"}
    assert json.loads((tmp_path / "step/adapter_config.json").read_text())["base_model_name_or_path"] == str(path)
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(path), str(tmp_path / "step")).eval()
    ids = torch.arange(12)[None]
    torch.testing.assert_close(peft(ids).logits, backend.model(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "qwen3_moe"])
def test_the_engine_samples_from_the_trained_adapter(family: str, deterministic: bool, tmp_path: Path):
    """The engine's log-probabilities over cached KV equal those of the backend's plain forward."""
    path = save_model(tmp_path, family)
    backend = load(path)
    train(backend, 3)
    rollout = RolloutConfig(device="cpu", deterministic=deterministic, max_num_seqs=4)

    async def sample():
        engine = load_torch_engine(configured(path, **LORA), rollout, 64)
        try:
            await engine.load_weights(backend.weights(), 1)
            requests = [
                GenerateRequest([5, 6, 7, 8 + seed], SamplingParams(seed=seed, max_new_tokens=20)) for seed in range(4)
            ]
            answers = [await engine.generate(r) for r in requests]
            if deterministic:  # bitwise equal in any batch, with an adapter too
                together = await asyncio.gather(*map(engine.generate, requests))
                assert [(a.token_ids, a.logprobs) for a in together] == [(a.token_ids, a.logprobs) for a in answers]
            return engine.kv_reuse, list(zip(requests, answers, strict=True))
        finally:
            await engine.close()

    kv_reuse, answers = asyncio.run(sample())
    assert kv_reuse
    samples = [as_sample(request.token_ids, answer.token_ids) for request, answer in answers]
    ours = asyncio.run(backend.score(samples)).logprobs
    for (request, answer), logprobs in zip(answers, ours, strict=True):
        assert answer.logprobs == pytest.approx(logprobs[len(request.token_ids) :], abs=1e-4)
    base = asyncio.run(backend.reference_score()(samples)).logprobs
    assert max(abs(a - b) for one, two in zip(ours, base, strict=True) for a, b in zip(one, two, strict=True)) > 0.1


def as_sample(prompt, answer) -> Sample:
    mask = [0] * len(prompt) + [1] * len(answer)
    numbers = [0.0] * len(mask)
    return Sample([*prompt, *answer], mask, [1.0] * len(mask), numbers, numbers, rollout_id="r")


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [(), ("*.layers.0.*",)])
def test_gradient_checkpointing_changes_no_gradient(frozen: tuple[str, ...], tmp_path: Path):
    """The first layers are frozen here, so no input to them requires a gradient."""
    path = save_model(tmp_path)
    pair = [load(path, {**LORA, "enable_gradient_checkpointing": on}, freeze_modules=frozen) for on in (False, True)]
    for backend in pair:
        train(backend, 2)
    for (_, one), (_, other) in zip(pair[0].weights(), pair[1].weights(), strict=True):
        assert one.any()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_run_starts_from_the_adapter_of_another_run(tmp_path: Path):
    path = save_model(tmp_path / "base")
    first = load(path)
    train(first, 2)
    asyncio.run(first.save(tmp_path / "step"))
    for model in ({"lora_adapter_path": str(tmp_path / "step")}, LORA | {"lora_adapter_path": str(tmp_path / "step")}):
        assert scores(load(path, model)) == scores(first)
    warm = load(tmp_path / "step", {})
    assert scores(warm) == scores(first)
    train(warm, 1)
    assert base_scores(warm) == scores(load(path, {}))


@pytest.mark.slow
def test_checkpoint_of_another_adapter_or_base_is_refused(tmp_path: Path):
    path = save_model(tmp_path / "base")
    lora, plain = load(path), load(path, {})
    asyncio.run(lora.save(tmp_path / "lora"))
    asyncio.run(plain.save(tmp_path / "plain"))
    other = load(save_model(tmp_path / "other", seed=1))
    for backend, folder, complaint in (
        (plain, "lora", "it holds a LoRA adapter, but this run trains whole weights"),
        (lora, "plain", "it holds whole weights, but this run trains a LoRA adapter"),
        (load(path, {"lora_rank": 8}), "lora", "r=4, but this run has 8"),
        (load(path, {"lora_rank": 4, "lora_alpha": 8}), "lora", "lora_alpha=16, but this run has 8"),
        (other, "lora", "other weights were frozen"),
    ):
        with pytest.raises(ConfigError, match=complaint) as caught:
            asyncio.run(backend.load(tmp_path / folder))
        assert "\n" not in str(caught.value)
    shutil.rmtree(path)
    asyncio.run(lora.load(tmp_path / "lora"))  # the base is in memory already
