"""Reasons why a rollout is not trained on."""

from __future__ import annotations

from enum import StrEnum


class Excluded(StrEnum):
    """Why no update uses a rollout."""

    FAILED = "failed"  # the agent loop raised an error
    INFRA_ERROR = "infra_error"  # the infrastructure failed, not the policy
    NO_TRAINED_TOKENS = "no_trained_tokens"
    EQUAL_REWARDS = "equal_rewards"  # dynamic sampling filtered its group: all rewards of the group are equal
    TOO_FEW = "too_few"  # dynamic sampling filtered its group: fewer than two valid rollouts
    STALE = "stale"  # in the next step, its group would be older than trainer.max_staleness; the task was requeued
    OVER_SAMPLED = "over_sampled"  # over-sampling: enough other groups were ready first; the task was requeued
    OVERLONG = "overlong"  # truncated by a length limit; algorithm.overlong_filter is on
    NO_ADVANTAGE = "no_advantage"  # all its advantages are 0, and the algorithm drops such rollouts
    REJECTED_BY_CORRECTION = "rejected_by_correction"  # algorithm.rollout_correction rejected all its tokens
    NOT_CREDITED = "not_credited"  # no advantages were computed: validation and rollout_only do not train
