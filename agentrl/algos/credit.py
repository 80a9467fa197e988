"""Convert groups into samples: select valid rollouts, place rewards on tokens, compute token advantages."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from agentrl.algos.advantages.registry import estimate_advantages
from agentrl.errors import ConfigError, Kind, RewardError
from agentrl.types.rollout import BASELINE, GUARD, Group, Rollout, Stop, TurnReward
from agentrl.types.sample import Sample
from agentrl.types.trajectory import Trajectory, VersionSpan

CUT_OFF = (Stop.MAX_TURN_TOKENS, Stop.MAX_RESPONSE_TOKENS)


def samples_of(groups: Sequence[Group]) -> list[Sample]:
    """Make one sample for each trajectory with trained tokens, from valid rollouts only.

    A rollout that failed for reasons outside the policy is invalid. The advantages of new samples are 0.
    """
    return [
        sample
        for group in groups
        for rollout_id, rollout in valid_rollouts(group)
        for trajectory in rollout.trajectories
        if any((sample := _sample(trajectory, group.uid, rollout_id, rollout.stop)).loss_mask)
    ]


def imitate(groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
    """Give every trained token advantage 1, times the weight of its sample."""
    return [credited(sample, sample.weight) for sample in samples]


def accept(groups: Sequence[Group], samples: Sequence[Sample], threshold: float) -> list[Sample]:
    """Set advantage 1 (times weight) for rollouts with score >= `threshold`, else 0 (rejection sampling)."""
    accepted = {rollout_id for rollout_id, rollout in _rollouts(groups).items() if rollout.reward >= threshold}
    return [credited(sample, sample.weight * (sample.rollout_id in accepted)) for sample in samples]


def credited(sample: Sample, value: float) -> Sample:
    """Return the sample with the same advantage on all its trained tokens."""
    return replace(sample, advantages=[value * trained for trained in sample.loss_mask])


def compare(
    groups: Sequence[Group],
    samples: Sequence[Sample],
    estimator: str,
    options: Mapping[str, Any],
    penalty: Penalty | None = None,
) -> list[Sample]:
    """Compute advantages and returns (a critic's targets) by `estimate_advantages` over all groups of a step.

    Advantages are multiplied by the weights of the samples; returns are not.

    Args:
        options: options of the estimator; values may have any type.
        penalty: function that returns, for a sample, the penalty on the reward of each token, [T].

    Raises:
        ConfigError: a sample is a demonstration, which has no behaviour log-probabilities.
        RewardError: see `turn_credit`.
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
            sample,
            advantages=(row[: len(sample.loss_mask)] * sample.weight).tolist(),
            returns=target[: len(sample.loss_mask)].tolist(),
        )
        for sample, row, target in zip(samples, advantages, returns, strict=True)
    ]


def _check_sampled(samples: Sequence[Sample], estimator: str) -> None:
    for sample in samples:
        if sample.behaviour_logprobs is None:
            raise ConfigError.at(
                "algorithm.adv_estimator",
                Kind.CONFLICT,
                f"algorithm.adv_estimator '{estimator}' needs rollouts of the policy, but group '{sample.uid}'"
                " holds demonstrations: use algorithm.name=sft",
            )


Penalty = Callable[[Sample], Sequence[float]]


def _less(rewards: Sequence[float], penalties: Sequence[float]) -> list[float]:
    return [reward - penalty for reward, penalty in zip(rewards, penalties, strict=True)]


def _values(samples: Sequence[Sample]) -> torch.Tensor | None:
    values = [sample.values for sample in samples if sample.values is not None]
    return _padded(values) if len(values) == len(samples) else None


def _baselines(groups: Sequence[Group], samples: Sequence[Sample]) -> torch.Tensor:
    """Reward of the greedy rollout of each sample's task, [B]; NaN if there is no greedy rollout or it failed."""
    rollouts = _rollouts(groups)
    return torch.tensor([rollouts[sample.rollout_id].rewards.get(BASELINE, math.nan) for sample in samples])


def token_rewards(groups: Sequence[Group], samples: Sequence[Sample]) -> list[list[float]]:
    """Put each rollout's reward on the last trained token of its last sample, [num samples][T]."""
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
    """Yield each valid rollout of a group, with the rollout id that the samples of the rollout have."""
    for index, rollout in enumerate(group.rollouts):
        if rollout.valid:
            yield f"{group.uid}/{index}", rollout


def _sample(trajectory: Trajectory, uid: str, rollout_id: str, stop: Stop) -> Sample:
    num_tokens = len(trajectory.token_ids)
    return Sample(
        token_ids=list(trajectory.token_ids),
        loss_mask=[0, *trajectory.loss_mask[1:]],  # the first token is not predicted, so it is never trained
        temperatures=trajectory.temperatures,
        advantages=[0.0] * num_tokens,
        behaviour_logprobs=trajectory.logprobs if trajectory.sampled else None,
        policy_versions=[0, *_versions(trajectory)[1:]] if trajectory.sampled else None,
        routed_experts=trajectory.routed_experts,
        truncated=stop in CUT_OFF,
        weight=trajectory.weight,
        rollout_id=rollout_id,
        uid=uid,
    )


def _versions(trajectory: Trajectory) -> list[int]:
    """Policy version that sampled each token, [T]; 0 for tokens that were not sampled."""
    versions: list[int] = []
    for segment in trajectory.segments:
        spans = segment.policy_versions or [VersionSpan(0, len(segment))]
        versions.extend(chain.from_iterable([span.version] * span.num_tokens for span in spans))
    return versions


def _padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)


@dataclass(frozen=True, slots=True)
class Turns:
    """Inputs of an advantage estimator, under the names that they have in `AdvantageBatch`.

    Attributes:
        turn_rewards: [B, T] float32; the sum of a turn's rewards, on the last token of the turn. None if no
            rollout has turn rewards.
        step_ends: [B, T] bool, true at the end of each turn that has a turn reward, even a reward of 0. None if no
            rollout has turn rewards: then each rollout is one step.
        observation_keys: `[B][turns]`; None for a turn without a key.
        components: name -> [B] float32, the rewards of each sample's rollout; 0 where a rollout has no such reward.
            Guard values (see `agentrl.types.rollout.GUARD`) and the greedy baseline are excluded.
    """

    turn_rewards: Tensor | None
    step_ends: Tensor | None
    observation_keys: list[list[str | None]]
    components: dict[str, Tensor]


def turn_credit(groups: Sequence[Group], samples: Sequence[Sample]) -> Turns:
    """Collect the turn rewards, observation keys and named rewards of `samples`, which belong to `groups`.

    A turn reward belongs to the turn of its segment. If a tool or user wrote the segment, the reward belongs to the
    turn before the segment. A reward is dropped if its trajectory has no trained token up to the end of the segment.
    Example: the trajectory in the docstring of `Trajectory`, with rewards 0.5 for segment 1 (the call) and 0.25 for
    segment 3:

        token_ids = [1 2 3 4 5 6]    turn_rewards = [0 0 0 0.5 0 0.25]    step_ends = [0 0 0 1 0 1]

    Args:
        samples: from `samples_of`. Rollouts may be omitted, but each remaining rollout must have all its samples.

    Raises:
        RewardError: a turn reward names a trajectory or segment that its rollout does not have.
    """
    rollouts = {f"{group.uid}/{index}": each for group in groups for index, each in enumerate(group.rollouts)}
    placed = list(_placed(rollouts, samples))
    rewards, ends = _blank(samples), _blank(samples)
    turns = [_turn_numbers(sample) for sample in samples]
    keys: list[list[str | None]] = [[None] * max(numbers, default=0) for numbers in turns]
    for row, token, reward in placed:
        rewards[row, token] += reward.value
        ends[row, token] = 1
        turn = turns[row][token] - 1
        keys[row][turn] = keys[row][turn] or reward.observation_key
    components = _components([rollouts[sample.rollout_id] for sample in samples])
    return Turns(rewards if placed else None, ends.bool() if placed else None, keys, components)


def _placed(rollouts: dict[str, Rollout], samples: Sequence[Sample]) -> Iterator[tuple[int, int, TurnReward]]:
    """Yield (row, token, reward) for each turn reward of the samples' rollouts."""
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row, sample in enumerate(samples):
        rows_of[sample.rollout_id].append(row)
    for rollout_id, rows in rows_of.items():
        rollout = rollouts[rollout_id]
        trained = [number for number, each in enumerate(rollout.trajectories) if any(each.loss_mask[1:])]
        row_of = dict(zip(trained, rows, strict=True))
        for reward in rollout.turn_rewards:
            before = _num_tokens_up_to(rollout_id, rollout, reward)
            row = row_of.get(reward.trajectory, -1)
            trained_tokens = [] if row < 0 else [t for t, each in enumerate(samples[row].loss_mask[:before]) if each]
            if trained_tokens:
                yield row, trained_tokens[-1], reward


def _num_tokens_up_to(rollout_id: str, rollout: Rollout, reward: TurnReward) -> int:
    """Count the trajectory's tokens up to the end of the reward's segment."""
    if reward.trajectory in range(len(rollout.trajectories)):
        segments = rollout.trajectories[reward.trajectory].segments
        if reward.segment in range(len(segments)):
            return sum(map(len, segments[: reward.segment + 1]))
    raise RewardError(
        f"rollout {rollout_id}: the turn reward '{reward.name}' refers to segment {reward.segment} of trajectory"
        f" {reward.trajectory}, but the rollout has no such segment"
    )


def _turn_numbers(sample: Sample) -> list[int]:
    """Number of turns that have started up to and including each token, [T]."""
    mask = sample.loss_mask
    return list(accumulate(now > before for before, now in zip([0, *mask], mask, strict=False)))


def _blank(samples: Sequence[Sample]) -> Tensor:
    return torch.zeros(len(samples), max((len(sample.loss_mask) for sample in samples), default=0))


def _components(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    given = dict.fromkeys(name for rollout in rollouts for name in rollout.rewards)
    names = [name for name in given if name != BASELINE and not name.startswith(GUARD)]
    return {name: torch.tensor([rollout.rewards.get(name, 0.0) for rollout in rollouts]) for name in names}
