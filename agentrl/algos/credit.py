"""From groups to samples: who takes part, where the reward stands, what each token's advantage is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from agentrl.algos.advantages import estimate_advantages
from agentrl.attempt import Group, Rollout
from agentrl.errors import ConfigError
from agentrl.samples import Sample
from agentrl.trajectory import Trajectory, VersionSpan


def samples_of(groups: Sequence[Group]) -> list[Sample]:
    """One sample a trajectory with trained tokens, of rollouts that did not fail for reasons outside the policy.

    Advantages are 0 until they are credited.
    """
    return [
        sample
        for group in groups
        for rollout_id, rollout in _valid_rollouts(group)
        for trajectory in rollout.trajectories
        if any((sample := _sample(trajectory, group.uid, rollout_id)).loss_mask)
    ]


def imitate(groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
    """Every trained token has advantage 1."""
    return [replace(sample, advantages=[float(trained) for trained in sample.loss_mask]) for sample in samples]


def compare(
    groups: Sequence[Group], samples: Sequence[Sample], estimator: str, options: Mapping[str, Any]
) -> list[Sample]:
    """Advantages by `estimate_advantages` over all groups of a step; `options` are the estimator's own, of any type.

    Raises:
        ConfigError: a demonstration, which nobody sampled, so that it has no probability to compare with.
    """
    for sample in samples:
        if sample.behaviour_logprobs is None:
            raise ConfigError(
                f"algorithm.adv_estimator '{estimator}' trains on what the policy sampled, but group '{sample.uid}'"
                " holds demonstrations: use algorithm.name=sft"
            )
    if not samples:
        return []
    advantages, _ = estimate_advantages(
        estimator,
        _padded(token_rewards(groups, samples)),
        _padded([sample.loss_mask for sample in samples]).bool(),
        [sample.uid for sample in samples],
        rollout_ids=[sample.rollout_id for sample in samples],
        **options,
    )
    return [
        replace(sample, advantages=values[: len(sample.loss_mask)].tolist())
        for sample, values in zip(samples, advantages, strict=True)
    ]


def token_rewards(groups: Sequence[Group], samples: Sequence[Sample]) -> list[list[float]]:
    """[num samples][T]: a rollout's reward stands once, on the last trained token of its last trajectory."""
    reward_of = {rollout_id: rollout.reward for group in groups for rollout_id, rollout in _valid_rollouts(group)}
    last_of = {sample.rollout_id: number for number, sample in enumerate(samples)}
    rewards = [[0.0] * len(sample.loss_mask) for sample in samples]
    for rollout_id, number in last_of.items():
        mask = samples[number].loss_mask
        last_trained = max(index for index, trained in enumerate(mask) if trained)
        rewards[number][last_trained] = reward_of[rollout_id]
    return rewards


def _valid_rollouts(group: Group) -> Iterator[tuple[str, Rollout]]:
    for index, rollout in enumerate(group.rollouts):
        if rollout.valid:
            yield f"{group.uid}/{index}", rollout


def _sample(trajectory: Trajectory, uid: str, rollout_id: str) -> Sample:
    num_tokens = len(trajectory.token_ids)
    return Sample(
        token_ids=list(trajectory.token_ids),
        loss_mask=[0, *trajectory.loss_mask[1:]],  # nothing predicts the first token, whoever wrote it
        temperatures=trajectory.temperatures,
        advantages=[0.0] * num_tokens,
        behaviour_logprobs=trajectory.logprobs if trajectory.sampled else None,
        policy_versions=[0, *_versions(trajectory)[1:]] if trajectory.sampled else None,
        routed_experts=trajectory.routed_experts,
        rollout_id=rollout_id,
        uid=uid,
    )


def _versions(trajectory: Trajectory) -> list[int]:
    """[T], whose weights sampled each token, 0 where none did."""
    versions: list[int] = []
    for segment in trajectory.segments:
        spans = segment.policy_versions or [VersionSpan(0, len(segment))]
        versions.extend(chain.from_iterable([span.version] * span.num_tokens for span in spans))
    return versions


def _padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
