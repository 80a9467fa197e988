"""Our off-policy correction equals verl's when a rollout is one trajectory and a step is one update."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algos.base import TokenBatch
from agentrl.algos.build import build_algorithm
from agentrl.algos.losses.aggregation import aggregation_weights
from agentrl.algos.off_policy.mismatch import mismatch_of
from agentrl.config.correction_bounds import REJECTIONS
from agentrl.config.run import RunConfig
from agentrl.types.sample import Sample

PEER = Path(__file__).with_name("verl_correction_peer.py")
WEIGHTS = [
    {"rollout_is": level, "rollout_is_threshold": bound, "rollout_is_batch_normalize": normalized}
    for level in ("token", "sequence")
    for bound in (1.5, "0.7_1.6")
    for normalized in (False, True)
]
LARGEST = {"token": (1.6, 0.15), "seq_sum": (1.6, 0.15), "seq_mean": (1.15, 0.07), "seq_max": (1.6, 0.15)}
REJECTED = [
    {"rollout_rs": name, "rollout_rs_threshold": LARGEST[name[:-3]][not name.endswith("k1")]} for name in REJECTIONS
]
ASKED = [
    *({"bypass_mode": False, **each} for each in (*WEIGHTS, *REJECTED)),
    {"bypass_mode": False, "rollout_rs": "token_k1, seq_max_k3", "rollout_rs_threshold": "0.6_1.9,0.3", **WEIGHTS[0]},
    *({"bypass_mode": True, "loss_type": "reinforce", **each} for each in WEIGHTS[:4]),
    {"bypass_mode": True, "loss_type": "reinforce"},
    {"bypass_mode": True},
]
LENGTHS = (5, 9, 3, 7, 1, 8)


def sampled() -> list[Sample]:
    draw = random.Random(0)
    return [_sample(draw, length, f"r{number}") for number, length in enumerate(LENGTHS)]


def _sample(draw: random.Random, length: int, rollout_id: str) -> Sample:
    mask = [0, *(draw.choice([0, 1, 1]) for _ in range(length - 1)), 1]
    old = [trained * draw.uniform(-3, -0.1) for trained in mask]
    behaviour = [value + draw.gauss(0, 0.4) if value else 0.0 for value in old]
    advantages = [trained * draw.gauss(0, 1) for trained in mask]
    ones = [1.0] * len(mask)
    return Sample([*range(len(mask))], mask, ones, advantages, behaviour, old, rollout_id=rollout_id)


def padded(rows: list[Any]) -> torch.Tensor:
    tensors = [torch.tensor(row, dtype=torch.float64) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def our_loss(algorithm: Any, samples: list[Sample], policy: torch.Tensor) -> float:
    weights, denominator = aggregation_weights("token-mean", [each.num_trained_tokens for each in samples])
    batch = TokenBatch(
        policy,
        torch.zeros_like(policy),
        padded([each.loss_mask for each in samples]).bool(),
        padded([each.advantages for each in samples]),
        padded([each.behaviour_logprobs for each in samples]),
        padded([each.old_logprobs for each in samples]),
        None,
        torch.tensor(weights),
        denominator,
        None if samples[0].importance_weights is None else padded([each.importance_weights for each in samples]),
    )
    return float(algorithm.loss(batch)[0])


@pytest.mark.slow
def test_weights_masks_and_losses_are_verls(run_peer: Callable[..., Any], tmp_path: Path) -> None:
    samples = sampled()
    fields = {"old": "old_logprobs", "behaviour": "behaviour_logprobs", "mask": "loss_mask", "advantages": "advantages"}
    step = {name: padded([getattr(each, field) for each in samples]) for name, field in fields.items()}
    noise = torch.randn(step["old"].shape, generator=torch.Generator().manual_seed(0)) / 4
    questions = tmp_path / "questions.json"
    moved = step["old"] + noise * step["mask"]
    # bypass mode: verl's weights use the current policy, ours use the policy at the start of the step
    for policy in (moved, step["old"]):
        asked = [each for each in ASKED if each["bypass_mode"] == (policy is step["old"])]
        tensors = {name: values.tolist() for name, values in {**step, "policy": policy}.items()}
        questions.write_text(json.dumps({"step": tensors, "asked": asked}))
        answers = run_peer("verl", PEER, questions)
        for correction, theirs in zip(asked, answers, strict=True):
            sections = {"model": {"path": "unused"}, "algorithm": {"rollout_correction": correction}}
            algorithm = build_algorithm(RunConfig.model_validate(sections))
            ours, metrics = algorithm.correct(samples)
            check(ours, metrics, theirs, str(correction))
            assert our_loss(algorithm, ours, policy) == pytest.approx(theirs["loss"], rel=1e-6), correction
        assert mismatch_of(samples, 0)["mismatch/k3"] == pytest.approx(answers[0]["k3_kl"], rel=1e-6)


def check(ours: list[Sample], metrics: dict[str, float], theirs: dict[str, Any], said: str) -> None:
    assert padded([each.loss_mask for each in ours]).tolist() == theirs["mask"], said
    if theirs["weights"] is not None:
        weights = padded([each.importance_weights for each in ours])
        torch.testing.assert_close(weights, torch.tensor(theirs["weights"], dtype=torch.float64), rtol=1e-6, atol=1e-6)
        if "'token'" in said:  # verl counts tokens here, even for rollout-level rejection
            assert metrics["correction/ess"] == pytest.approx(theirs["rollout_is_eff_sample_size"], rel=1e-5)
    if theirs["rollout_rs_masked_fraction"] is not None:
        assert metrics["correction/rejected_tokens"] == pytest.approx(theirs["rollout_rs_masked_fraction"], rel=1e-6)


def test_verl_comparison_covers_every_correction() -> None:
    for correction in (*WEIGHTS, *REJECTED):
        sections = {"model": {"path": "unused"}, "algorithm": {"rollout_correction": correction}}
        _, metrics = build_algorithm(RunConfig.model_validate(sections)).correct(sampled())
        shares = [value for name, value in metrics.items() if name.split("/")[1] in ("truncated", "masked")]
        shares += [metrics[name] for name in metrics if name == "correction/rejected_tokens"]
        assert shares
        assert all(0 < share < 1 for share in shares), (correction, metrics)
