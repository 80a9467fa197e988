"""The gradient of the torch backend: independent of the split, equal to a plain computation, clipped.

GPT-NeoX is used where float64 must be exact: the other families compute their norms in float32.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from tiny_models import make_groups, make_samples, save_model

from agentrl.algos.losses.aggregation import MODES
from agentrl.algos.losses.policy import PenalisedLoss, PolicyLoss
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.types.sample import Sample


def load(path: Path, *, model: dict[str, object] | None = None, **actor: object) -> TorchBackend:
    config = ActorConfig.model_validate({"optim": {"lr": 1e-2}, "device": "cpu", **actor})
    return load_torch_backend(ModelConfig(path=str(path), **(model or {})), config, total_updates=10, seed=0)


def gradients(
    backend: TorchBackend, samples: list[Sample], loss: PolicyLoss
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """The metrics of an update, and the gradients behind it."""
    caught: list[torch.Tensor] = []
    optimizer = backend._optimizer
    step, parameters = optimizer.step, list(backend.model.parameters())

    def catch() -> dict[str, float]:
        caught.extend(value.grad.clone() for value in parameters)
        return step()

    optimizer.step = catch
    metrics = asyncio.run(backend.train_step(samples, loss)).metrics
    asyncio.run(backend.close())
    return metrics, caught


def assert_same(one, other, tolerance: float) -> None:
    ignored = {"num_micro_batches"}
    for name in one[0].keys() - ignored:
        assert one[0][name] == pytest.approx(other[0][name], rel=tolerance, abs=tolerance), name
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", MODES)
def test_gradient_loss_and_metrics_do_not_depend_on_the_micro_batch_split(mode: str, tmp_path: Path):
    path = save_model(tmp_path, "gpt_neox", torch.float64)
    loss = PenalisedLoss(PolicyLoss("vanilla", {}, mode, norm_length=20), kl_coef=0.1, entropy_coef=0.05)
    samples = make_samples(9, ref=True)
    whole = gradients(load(path, ppo_max_token_len_per_gpu=10**6), samples, loss)
    assert whole[0]["num_micro_batches"] == 1
    for cut in ({"ppo_max_token_len_per_gpu": 40}, {"ppo_micro_batch_size_per_gpu": 1}):
        pieces = gradients(load(path, **cut), samples, loss)
        assert pieces[0]["num_micro_batches"] > 3
        assert_same(pieces, whole, 1e-10)


def test_gradient_equals_a_plain_computation(tmp_path: Path):
    path = save_model(tmp_path, "gpt_neox", torch.float64)
    backend = load(path)
    samples = make_samples(4)
    plain = load(path)
    terms = []
    for sample in samples:
        logits = plain.model(input_ids=torch.tensor([sample.token_ids])).logits[0]
        for index in (i for i, trained in enumerate(sample.loss_mask) if trained):
            log_softmax = (logits[index - 1] / sample.temperatures[index]).log_softmax(0)
            ratio = (log_softmax[sample.token_ids[index]] - sample.behaviour_logprobs[index]).exp()
            advantage = sample.advantages[index]
            objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            terms.append(-objective.clamp(min=3 * advantage) if advantage < 0 else -objective)
    torch.stack(terms).mean().backward()
    _, actual = gradients(backend, samples, PolicyLoss("vanilla"))
    for mine, theirs in zip(actual, plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.grad, rtol=1e-6, atol=1e-7)  # temperatures are float32 numbers


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", ["qwen3", "gpt_neox", "gpt2", "opt"])  # all but qwen3 have dropout, which stays off
def test_gradient_checkpointing_gives_the_same_gradient(family: str, tmp_path: Path):
    path = save_model(tmp_path, family, torch.float64)
    samples = make_groups()
    plain = gradients(load(path), samples, PolicyLoss("vanilla"))
    backend = load(path, model={"enable_gradient_checkpointing": True})
    calls = []
    attention = next(module for name, module in backend.model.named_modules() if name.endswith(("attn", "attention")))
    attention.register_forward_pre_hook(lambda *_: calls.append(1))
    assert_same(gradients(backend, samples, PolicyLoss("vanilla")), plain, 1e-10)
    assert len(calls) == 2  # one forward, and one recomputation in backward


@pytest.mark.parametrize("kind", [{"model": {"dtype": "bfloat16"}}, {"autocast": "bfloat16"}])
def test_bfloat16_runs_and_stays_near_float32(kind: dict, tmp_path: Path):
    path = save_model(tmp_path)
    samples = make_samples(5)
    exact, low = load(path), load(path, **kind)
    expected, actual = (asyncio.run(backend.score(samples)).logprobs for backend in (exact, low))
    flat = [[value for row in rows for value in row] for rows in (expected, actual)]
    torch.testing.assert_close(torch.tensor(flat[1]), torch.tensor(flat[0]), rtol=0.05, atol=0.1)
    assert flat[0] != flat[1]
    metrics = asyncio.run(low.train_step(samples, PenalisedLoss(PolicyLoss("vanilla"), entropy_coef=0.01))).metrics
    assert metrics["skipped_updates"] == 0


def test_gradients_are_clipped_to_the_norm(tmp_path: Path):
    path = save_model(tmp_path, "gpt_neox", torch.float64)
    plain = {"optim": {"lr": 1e-2, "eps": 1e6, "weight_decay": 0.0}}  # with a large eps AdamW moves along the gradient
    moves = []
    for grad_clip in (1e6, 1e-2):
        backend = load(path, grad_clip=grad_clip, **plain)
        before = [value.detach().clone() for value in backend.model.parameters()]
        metrics = asyncio.run(backend.train_step(make_samples(5), PolicyLoss("vanilla"))).metrics
        moved = [value.detach() - old for value, old in zip(backend.model.parameters(), before, strict=True)]
        moves.append((metrics["grad_norm"], torch.cat([value.flatten() for value in moved]).double().norm().item()))
    (norm, far), (same_norm, near) = moves
    assert norm == same_norm > 1e-2
    assert near / far == pytest.approx(1e-2 / norm, rel=1e-3)


def test_float16_is_refused(tmp_path: Path):
    path = save_model(tmp_path)
    for kind in ({"model": {"dtype": "float16"}}, {"autocast": "float16"}):
        with pytest.raises(ConfigError, match="float16"):
            load(path, **kind)


def test_samples_must_agree_on_what_they_carry(tmp_path: Path):
    backend = load(save_model(tmp_path))
    samples = [*make_samples(1), *make_samples(1, ref=True)]
    with pytest.raises(ValueError, match="other samples do not have"):
        asyncio.run(backend.train_step(samples, PolicyLoss("vanilla")))


def test_loss_is_an_aggregate_of_the_scores(tmp_path: Path):
    backend = load(save_model(tmp_path))
    samples = make_samples(3)
    scores = asyncio.run(backend.score(samples))
    expected = sum(
        -logprob * advantage
        for sample, logprobs in zip(samples, scores.logprobs, strict=True)
        for logprob, advantage in zip(logprobs, sample.advantages, strict=True)
    ) / sum(sample.num_trained_tokens for sample in samples)
    assert asyncio.run(backend.train_step(samples, PolicyLoss("sft"))).metrics["loss"] == pytest.approx(
        expected, rel=1e-4
    )
