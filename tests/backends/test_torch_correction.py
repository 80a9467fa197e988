"""Off-policy corrections under the torch backend: gradient and metrics do not depend on the micro-batch split."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_torch_training import assert_same, gradients, load
from tiny_models import make_samples, save_model

from agentrl.algos.build import build_algorithm
from agentrl.algos.off_policy.mismatch import WatchedLoss, mismatch_of, split_metrics
from agentrl.config.run import RunConfig
from agentrl.types.sample import Sample

CORRECTIONS = {
    "decoupled": {"bypass_mode": False},
    "tokens": {"bypass_mode": False, "rollout_is": "token"},
    "rollouts": {"bypass_mode": False, "rollout_is": "sequence", "rollout_is_batch_normalize": True},
    "masked": {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": "0.7_1.5"},
    "reinforce": {"loss_type": "reinforce", "rollout_is": "sequence"},
    "tokens_rejected": {"rollout_rs": "token_k2", "rollout_rs_threshold": 0.05},
    "rollouts_rejected": {"rollout_rs": "seq_mean_k1,seq_max_k3", "rollout_rs_threshold": "0.9_1.25,0.4"},
}


def sampled(samples: list[Sample], logprobs: list[list[float]]) -> list[Sample]:
    """Samples as if drawn by another policy, close to `logprobs`."""
    draw = random.Random(1)
    return [
        replace(
            sample,
            old_logprobs=scores,
            behaviour_logprobs=[score + draw.gauss(0, 0.3) if score else 0.0 for score in scores],
            policy_versions=[trained * draw.choice([2, 3]) for trained in sample.loss_mask],
        )
        for sample, scores in zip(samples, logprobs, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CORRECTIONS)
def test_gradient_does_not_depend_on_the_micro_batch_split(name: str, tmp_path: Path):
    path = save_model(tmp_path, "gpt_neox", torch.float64)
    sections = {
        "algorithm": {"rollout_correction": CORRECTIONS[name]},
        "actor": {"loss_agg_mode": "seq-mean-token-mean"},
    }
    algorithm = build_algorithm(RunConfig.model_validate({"model": {"path": "unused"}, **sections}))
    plain = make_samples(9)
    scored = sampled(plain, asyncio.run(load(path).score(plain)).logprobs)
    samples, metrics = algorithm.correct(scored)
    assert 0 < metrics.get("correction/rejected_tokens", 0.5) < 1  # some tokens are rejected and some are kept
    loss = WatchedLoss(algorithm.loss, 3)
    whole = gradients(load(path, ppo_max_token_len_per_gpu=10**6), samples, loss)
    assert any(gradient.abs().max() > 0 for gradient in whole[1])
    for cut in ({"ppo_max_token_len_per_gpu": 40}, {"ppo_micro_batch_size_per_gpu": 1}):
        pieces = gradients(load(path, **cut), samples, loss)
        assert pieces[0]["num_micro_batches"] > 1
        assert_same(pieces, whole, 1e-10)


def test_the_first_update_sees_the_mismatch_that_scores_would_show(tmp_path: Path):
    path = save_model(tmp_path, "gpt_neox", torch.float64)
    plain = make_samples(7)
    scored = sampled(plain, asyncio.run(load(path).score(plain)).logprobs)
    algorithm = build_algorithm(RunConfig.model_validate({"model": {"path": "unused"}}))
    backend = load(path, ppo_micro_batch_size_per_gpu=2)
    metrics, _ = gradients(backend, scored, WatchedLoss(algorithm.loss, 3))
    assert split_metrics(metrics)[1] == pytest.approx(mismatch_of(scored, 3))
    assert mismatch_of(scored, 3)["mismatch/older/share"] > 0


@pytest.mark.slow
def test_rejected_tokens_count_in_no_denominator(tmp_path: Path):
    path = save_model(tmp_path, "gpt_neox", torch.float64)
    plain = make_samples(6)
    scored = sampled(plain, asyncio.run(load(path).score(plain)).logprobs)
    rejecting = {"rollout_correction": {"rollout_rs": "seq_mean_k2", "rollout_rs_threshold": 0.045}}
    for mode in ("token-mean", "seq-mean-token-mean"):
        config = {"model": {"path": "unused"}, "algorithm": rejecting, "actor": {"loss_agg_mode": mode}}
        algorithm = build_algorithm(RunConfig.model_validate(config))
        samples, _ = algorithm.correct(scored)
        left = [each for each in samples if each.num_trained_tokens]
        assert 0 < len(left) < len(samples)
        alone = gradients(load(path), left, algorithm.loss)
        assert_same(gradients(load(path), samples, algorithm.loss), alone, 1e-12)
