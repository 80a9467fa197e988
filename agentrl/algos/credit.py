"""From groups to samples: who takes part, where the reward stands, what each token's advantage is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from agentrl.algos.advantages import estimate_advantages
from agentrl.algos.turns import turn_credit
from agentrl.attempt import BASELINE, Group, Rollout, Stop
from agentrl.errors import ConfigError
from agentrl.samples import Sample
from agentrl.trajectory import Trajectory, VersionSpan

_CUT_OFF = (Stop.MAX_TURN_TOKENS, Stop.MAX_RESPONSE_TOKENS)


def samples_of(groups: Sequence[Group]) -> list[Sample]:
    """One sample a trajectory with trained tokens, of rollouts that did not fail for reasons outside the policy.

    Advantages are 0 until they are credited.
    """
    return [
        sample
        for group in groups
        for rollout_id, rollout in valid_rollouts(group)
        for trajectory in rollout.trajectories
        if any((sample := _sample(trajectory, group.uid, rollout_id, rollout.stop)).loss_mask)
    ]


def imitate(groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
    """Every trained token has advantage 1."""
    return [credited(sample, 1.0) for sample in samples]


def accept(groups: Sequence[Group], samples: Sequence[Sample], threshold: float) -> list[Sample]:
    """Advantage 1 for the tokens of rollouts whose score is `threshold` or more, 0 for others (rejection sampling)."""
    accepted = {rollout_id for rollout_id, rollout in _rollouts(groups).items() if rollout.reward >= threshold}
    return [credited(sample, float(sample.rollout_id in accepted)) for sample in samples]


def credited(sample: Sample, value: float) -> Sample:
    """The sample with the same advantage on each of its trained tokens."""
    return replace(sample, advantages=[value * trained for trained in sample.loss_mask])


def compare(
    groups: Sequence[Group],
    samples: Sequence[Sample],
    estimator: str,
    options: Mapping[str, Any],
    penalty: Penalty | None = None,
) -> list[Sample]:
    """Advantages, and what a critic is to predict, by `estimate_advantages` over all groups of a step.

    Args:
        options: the estimator's own, of any type.
        penalty: what is taken from the reward of each token of a sample, [T].

    Raises:
        ConfigError: a demonstration, which nobody sampled, so that it has no probability to compare with.
    """
    _check_sampled(samples, estimator)
    if not samples:
        return []
    rewards = token_rewards(groups, samples)
    if penalty is not None:
        rewards = [_less(row, penalty(sample)) for row, sample in zip(rewards, samples, strict=True)]
    turns = turn_credit(groups, samples)
    advantages, returns = estimate_advantages(
        estimator,
        _padded(rewards),
        _padded([sample.loss_mask for sample in samples]).bool(),
        [sample.uid for sample in samples],
        rollout_ids=[sample.rollout_id for sample in samples],
        values=_values(samples),
        baselines=_baselines(groups, samples),
        turn_rewards=turns.turn_rewards,
        step_ends=turns.step_ends,
        observation_keys=turns.observation_keys,
        components=turns.components,
        **options,
    )
    return [
        replace(
            sample, advantages=row[: len(sample.loss_mask)].tolist(), returns=target[: len(sample.loss_mask)].tolist()
        )
        for sample, row, target in zip(samples, advantages, returns, strict=True)
    ]


def _check_sampled(samples: Sequence[Sample], estimator: str) -> None:
    for sample in samples:
        if sample.behaviour_logprobs is None:
            raise ConfigError(
                f"algorithm.adv_estimator '{estimator}' trains on what the policy sampled, but group '{sample.uid}'"
                " holds demonstrations: use algorithm.name=sft"
            )


Penalty = Callable[[Sample], Sequence[float]]


def _less(rewards: Sequence[float], penalties: Sequence[float]) -> list[float]:
    return [reward - penalty for reward, penalty in zip(rewards, penalties, strict=True)]


def _values(samples: Sequence[Sample]) -> torch.Tensor | None:
    values = [sample.values for sample in samples if sample.values is not None]
    return _padded(values) if len(values) == len(samples) else None


def _baselines(groups: Sequence[Group], samples: Sequence[Sample]) -> torch.Tensor:
    """[B], what the greedy rollout of each sample's task was worth; NaN where there is none, or it failed."""
    rollouts = _rollouts(groups)
    return torch.tensor([rollouts[sample.rollout_id].rewards.get(BASELINE, math.nan) for sample in samples])


def token_rewards(groups: Sequence[Group], samples: Sequence[Sample]) -> list[list[float]]:
    """[num samples][T]: a rollout's reward stands once, on the last trained token of its last trajectory."""
    rollouts = _rollouts(groups)
    last_of = {sample.rollout_id: number for number, sample in enumerate(samples)}
    rewards = [[0.0] * len(sample.loss_mask) for sample in samples]
    for rollout_id, number in last_of.items():
        mask = samples[number].loss_mask
        last_trained = max(index for index, trained in enumerate(mask) if trained)
        rewards[number][last_trained] = rollouts[rollout_id].reward
    return rewards


def _rollouts(groups: Sequence[Group]) -> dict[str, Rollout]:
    return {rollout_id: rollout for group in groups for rollout_id, rollout in valid_rollouts(group)}


def valid_rollouts(group: Group) -> Iterator[tuple[str, Rollout]]:
    """The rollouts of a group that count, under the ids that their samples have."""
    for index, rollout in enumerate(group.rollouts):
        if rollout.valid:
            yield f"{group.uid}/{index}", rollout


def _sample(trajectory: Trajectory, uid: str, rollout_id: str, stop: Stop) -> Sample:
    num_tokens = len(trajectory.token_ids)
    return Sample(
        token_ids=list(trajectory.token_ids),
        loss_mask=[0, *trajectory.loss_mask[1:]],  # nothing predicts the first token, whoever wrote it
        temperatures=trajectory.temperatures,
        advantages=[0.0] * num_tokens,
        behaviour_logprobs=trajectory.logprobs if trajectory.sampled else None,
        policy_versions=[0, *_versions(trajectory)[1:]] if trajectory.sampled else None,
        routed_experts=trajectory.routed_experts,
        truncated=stop in _CUT_OFF,
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
