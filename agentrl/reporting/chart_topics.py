"""The named charts of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agentrl.reporting.formatting import number, percent

NOISE = 1e-6
"""Rounding noise of metrics computed from float32 log-probabilities; smaller differences mean nothing."""

NOISY = {"actor", "critic", "kl", "mismatch", "publish"}
"""Metric families computed from log-probabilities."""


class Topic(NamedTuple):
    """A chart: its title, the unit of its values, and (label, metric) of each line."""

    title: str
    unit: str
    write: Callable[[float], str]
    lines: tuple[tuple[str, str], ...]
    noise: float = 0.0
    always: bool = False


_SHARE = "share of rollouts"
TOPICS = (
    Topic("Success", _SHARE, percent, (("training", "success"), ("held-out", "val/success")), always=True),
    Topic("Reward", "mean score", number, (("training", "reward/mean"), ("held-out", "val/reward/mean")), always=True),
    Topic(
        "Response length",
        "tokens",
        number,
        (("training", "response_length/mean"), ("held-out", "val/response_length/mean")),
    ),
    Topic("Turns", "turns per rollout", number, (("training", "num_turns/mean"), ("held-out", "val/num_turns/mean"))),
    Topic(
        "Dropped rollouts",
        _SHARE,
        percent,
        (("training", "rollouts/dropped"), ("held-out", "val/rollouts/dropped")),
        NOISE,
    ),
    Topic(
        "KL divergence",
        "nats per token",
        number,
        (
            ("to the old policy", "actor/ppo_kl"),
            ("to the reference", "actor/kl_loss"),
            ("to the reference, in the reward", "kl/reward_mean"),
        ),
        NOISE,
    ),
    Topic("Coefficient of the KL in the reward", "coefficient", number, (("coefficient", "kl/reward_coef"),)),
    Topic("Pairs ranked correctly", "share of pairs", percent, (("training", "actor/accuracy"),)),
    Topic(
        "Preference",
        "log-ratio times beta",
        number,
        (("margin", "actor/margin"), ("chosen", "actor/chosen_rewards"), ("rejected", "actor/rejected_rewards")),
        NOISE,
    ),
    Topic("Samples in the loss", "share of samples", percent, (("kept", "kept/samples"),), NOISE),
    Topic(
        "Groups of a step",
        "groups",
        number,
        (("sampled", "sampling/drawn"), ("filtered: equal rewards", "sampling/filtered")),
    ),
    Topic(
        "Clipped tokens",
        "share of tokens",
        percent,
        (("by the clip", "actor/pg_clipfrac"), ("by the dual clip", "actor/pg_clipfrac_lower")),
        NOISE,
    ),
    Topic("Entropy", "nats", number, (("policy", "actor/entropy"),), NOISE),
    Topic(
        "Loss",
        "loss",
        number,
        (("training", "actor/loss"), ("held-out", "val/loss"), ("critic", "critic/vf_loss")),
        NOISE,
    ),
    Topic(
        "Variance explained by the critic",
        "share of variance",
        percent,
        (("of the returns", "critic/vf_explained_var"),),
        NOISE,
    ),
    Topic(
        "Gradient norm",
        "norm",
        number,
        (("before clipping", "actor/grad_norm"), ("critic", "critic/grad_norm")),
        NOISE,
    ),
    Topic("Learning rate", "learning rate", number, (("policy", "actor/lr"), ("critic", "critic/lr"))),
    Topic(
        "Time per step",
        "seconds",
        number,
        (
            ("step", "timing_s/step"),
            ("collect", "timing_s/collect"),
            ("critic", "timing_s/critic"),
            ("learn", "timing_s/learn"),
            ("reward model", "timing_s/reward_model"),
            ("publish", "timing_s/publish"),
            ("wait for rollouts", "timing_s/wait_rollouts"),
        ),
    ),
    Topic("Throughput", "tokens per second", number, (("training", "perf/tokens_per_s"),)),
    Topic(
        "Cached context",
        "share of tokens",
        percent,
        (("all turns", "engine/cached_share"), ("later turns", "engine/later_cached_share")),
        NOISE,
    ),
    Topic(
        "Mismatch of engine and trainer",
        "nats per token",
        number,
        (
            ("mean", "mismatch/current/mean"),
            ("k3", "mismatch/current/k3"),
            ("after syncing weights, mean", "publish/probe_mean_diff"),
        ),
        NOISE,
    ),
    Topic("Staleness", "weight versions", number, (("mean", "staleness/mean"), ("maximum", "staleness/max"))),
    Topic(
        "Asynchronous rollouts",
        "share",
        percent,
        (
            ("engine idle", "staleness/engine_idle"),
            ("groups requeued", "staleness/requeued_share"),
            ("rollouts of several versions", "staleness/partial"),
        ),
    ),
)
