"""Scalar-head models under the torch backend: their values, training and checkpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from test_torch_offload import OFFLOAD, Elsewhere
from tiny_models import make_groups, make_samples, save_model, with_returns
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from agentrl.algos.losses.value import ValueLoss
from agentrl.backends.torch import backend as backend_module
from agentrl.backends.torch.backend import TorchBackend, load_scalar_backend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.types.sample import Sample


def load(path: Path, trainable: bool = True, model: dict[str, object] | None = None, **actor: object) -> TorchBackend:
    optim = {"lr": 1e-2, "lr_warmup_steps": 2, **actor.pop("optim", {})}
    config = ActorConfig.model_validate({"optim": optim, "device": "cpu", **actor})
    model_config = ModelConfig.model_validate({"path": str(path), **(model or {})})
    return load_scalar_backend(model_config, config, total_updates=10, seed=0, trainable=trainable)


def with_a_head(path: Path, family: str) -> Path:
    """A checkpoint with a random head, so that its values are not all 0."""
    model = AutoModelForSequenceClassification.from_pretrained(save_model(path / "lm", family), num_labels=1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(path / "rm")
    return path / "rm"


@torch.no_grad()
def value_before(model: PreTrainedModel, sample: Sample, index: int) -> float:
    """Values from transformers' own forward pass over the tokens before each token."""
    return float(model(input_ids=torch.tensor([sample.token_ids[:index]])).logits[0, 0])


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt2", "opt", "mistral", "qwen3_moe"])
def test_value_depends_on_all_preceding_tokens(tmp_path: Path, family: str, share_prefixes: bool):
    backend, samples = load(with_a_head(tmp_path, family), share_prefixes=share_prefixes), make_groups()
    assert backend._positionwise.shares_prefixes == share_prefixes
    scores = asyncio.run(backend.score(samples))
    assert scores.logprobs == scores.entropy == []
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm").eval()
    for sample, values in zip(samples, scores.values or [], strict=True):
        expected = [
            value_before(model, sample, index) if trained else 0.0 for index, trained in enumerate(sample.loss_mask)
        ]
        assert values == pytest.approx(expected, rel=1e-3, abs=1e-3)
        assert len(set(values)) > 1


def test_extra_token_reads_the_complete_sequence(tmp_path: Path):
    backend, token_ids = load(with_a_head(tmp_path, "llama")), [5, 9, 31, 7]
    sample = Sample([*token_ids, 0], [0, 0, 0, 0, 1], [1.0] * 5, [0.0] * 5)
    assert asyncio.run(backend.score([sample])).values == [
        [0.0] * 4 + [pytest.approx(value_before(backend.model, sample, 4))]
    ]


@pytest.mark.slow
def test_new_value_head_starts_at_zero_and_learns(tmp_path: Path):
    backend, samples = load(save_model(tmp_path)), with_returns(make_samples(8))
    values = asyncio.run(backend.score(samples)).values
    assert values == [[0.0] * len(sample.token_ids) for sample in samples]
    loss = ValueLoss(cliprange_value=10)
    metrics = [asyncio.run(backend.train_step(samples, loss)).metrics for _ in range(30)]
    assert metrics[0]["vpred_mean"] == metrics[0]["vf_clipfrac"] == 0
    assert metrics[-1]["loss"] < 0.2 * metrics[0]["loss"]
    assert {"grad_norm", "lr", "num_tokens", "num_micro_batches"} <= metrics[0].keys()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_micro_batch_split_changes_no_update(tmp_path: Path, optimizer: str):
    path, samples = with_a_head(tmp_path, "qwen3"), with_returns(make_samples(6))
    found = []
    for size in (None, 1):
        backend = load(path, ppo_micro_batch_size_per_gpu=size, optim={"name": optimizer})
        metrics = asyncio.run(backend.train_step(samples, ValueLoss())).metrics
        found.append(({k: v for k, v in metrics.items() if k != "num_micro_batches"}, dict(backend.weights())))
    (one, weights), (other, same) = found
    assert one == pytest.approx(other, rel=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(value, same[name], rtol=1e-3, atol=2e-4)  # tolerance for steps of 5e-3


def test_values_are_clipped_to_the_old_ones(tmp_path: Path):
    backend, samples = load(with_a_head(tmp_path, "qwen3")), with_returns(make_samples(4))
    assert asyncio.run(backend.train_step(samples, ValueLoss(cliprange_value=0))).metrics["vf_clipfrac"] > 0.1


@pytest.mark.slow
def test_checkpoint_resumes_bitwise_and_loads_in_transformers(tmp_path: Path):
    path, loss = save_model(tmp_path / "start"), ValueLoss()
    first, second = load(path), load(path)
    for seed in range(3):
        asyncio.run(first.train_step(with_returns(make_samples(4, seed)), loss))
    asyncio.run(first.save(tmp_path / "saved"))
    asyncio.run(second.load(tmp_path / "saved"))
    stats = [asyncio.run(each.train_step(with_returns(make_samples(4, 3)), loss)) for each in (first, second)]
    assert stats[0] == stats[1]
    after = dict(second.weights())
    assert all(torch.equal(value, after[name]) for name, value in first.weights())
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert saved.config.num_labels == 1
    reader = load(tmp_path / "saved", trainable=False)
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in reader.weights())
    assert saved.score.weight.any()


def test_policy_checkpoint_is_refused_for_a_critic(tmp_path: Path):
    path = save_model(tmp_path / "start", "llama")
    policy = load_torch_backend(ModelConfig(path=str(path)), ActorConfig(device="cpu"), total_updates=1, seed=0)
    asyncio.run(policy.save(tmp_path / "policy"))
    for trainable in (True, False):
        with pytest.raises(ConfigError, match=r"lacks 1 weights, such as 'score\.weight'"):
            asyncio.run(load(path, trainable).load(tmp_path / "policy"))


def test_policy_loss_gets_no_returns(tmp_path: Path):
    with pytest.raises(ValueError, match="a scalar head and samples with returns"):
        asyncio.run(load(save_model(tmp_path)).train_step(make_samples(2), ValueLoss()))


def test_value_head_trains_with_lora_and_gradient_checkpointing(tmp_path: Path):
    path, samples = save_model(tmp_path), with_returns(make_samples(3))
    plain = load(path)
    other = load(path, model={"lora_rank": 4, "enable_gradient_checkpointing": True})
    results = [asyncio.run(each.train_step(samples, ValueLoss())) for each in (plain, other)]
    assert results[0] == results[1]  # all layers trained, one after the other


def test_values_have_at_least_float32_precision(tmp_path: Path):
    backend = load(with_a_head(tmp_path, "qwen3"), autocast="bfloat16")
    values = [value for row in asyncio.run(backend.score(make_samples(4))).values or [] for value in row if value]
    assert any(value != float(torch.tensor(value).bfloat16()) for value in values)


def learned(backend: TorchBackend, folder: Path) -> list[object]:
    """Everything that a critic computes over three updates, with a checkpoint after each update."""
    found: list[object] = []
    for seed in range(3):
        found.append(asyncio.run(backend.score(make_samples(4, seed))))
        found.append(asyncio.run(backend.train_step(with_returns(make_samples(4, seed)), ValueLoss())).metrics)
        asyncio.run(backend.save(folder))
        asyncio.run(backend.load(folder))
    return [*found, *((name, value.tolist()) for name, value in backend.weights())]


@pytest.mark.slow
def test_weights_and_averages_may_be_offloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save_model(tmp_path / "model")
    plain = learned(load(path), tmp_path / "a")
    elsewhere = Elsewhere()
    monkeypatch.setattr(backend_module, "moves_of", lambda device: elsewhere.moves)
    assert learned(load(path, **OFFLOAD), tmp_path / "b") == plain
    assert elsewhere.moved["out"] > elsewhere.moved["back"] > 100


@pytest.mark.gpu
@pytest.mark.parametrize("offload", [{}, OFFLOAD])
def test_on_a_gpu_values_are_those_of_the_cpu(tmp_path: Path, offload: dict[str, object]):
    path, samples = with_a_head(tmp_path, "qwen3"), with_returns(make_samples(6))
    values = []
    for device in ("cpu", "cuda"):
        backend = load(path, device=device, **(offload if device == "cuda" else {}))
        asyncio.run(backend.train_step(samples, ValueLoss()))
        values.append([value for row in asyncio.run(backend.score(samples)).values or [] for value in row])
    assert values[1] == pytest.approx(values[0], rel=1e-2, abs=1e-2)
