"""Metrics of rewards and success."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Row

REWARD = Metric(
    "reward/mean",
    "score",
    "mean score of the step's rollouts",
    console=Row("reward"),
    report=Line("Reward", "training"),
    viewer=1,
)
REWARD_STD = Metric("reward/std", "score", "standard deviation of the scores of the step's rollouts")
REWARD_PART = Metric("reward/<name>", "score", "mean of the reward with this name")
GUARD = Metric("reward/guard/<name>", "share", "rollouts in which this guard was triggered")
SUCCESS = Metric(
    "success",
    "share",
    "rollouts whose score reaches `reward.success_threshold`",
    console=Row("success"),
    report=Line("Success", "training"),
    viewer=2,
)
SUCCESS_ALL = Metric("success_all", "share", "successes as a share of all rollouts; a dropped rollout is not a success")
SUCCESS_OF_SOURCE = Metric("success/<data_source>", "share", "successful rollouts among those of one data source")
ZERO_VARIANCE = Metric(
    "groups/zero_variance", "share", "groups whose rewards are all equal, so that group-relative advantages are 0"
)
