"""What a run's curves are: which metrics share a chart, and under which names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agentrl.trainer.figures import number, percent, tool_outcomes
from agentrl.trainer.health_reward_rules import GUARD_METRICS

Point = tuple[float, float]
"""(step, value)"""
History = Sequence[Mapping[str, float]]
"""One mapping a step, with the step under `step`; finite numbers only."""
_LARGEST = 1e300  # what is larger is left out as infinity is: sums and differences of it are


class Series(NamedTuple):
    """One line of a chart."""

    label: str
    points: list[Point]


class Chart(NamedTuple):
    """Lines that share their axes."""

    title: str
    series: list[Series]
    write: Callable[[float], str] = number


_LATER_CACHED = "engine/later_cached_share"
_CHARTS: tuple[tuple[str, Callable[[float], str], tuple[tuple[str, str], ...]], ...] = (
    ("Success", percent, (("training", "success"), ("held-out", "val/success"))),
    ("Reward", number, (("training", "reward/mean"), ("held-out", "val/reward/mean"))),
    (
        "Response length, tokens",
        number,
        (("training", "response_length/mean"), ("held-out", "val/response_length/mean")),
    ),
    ("Turns", number, (("training", "num_turns/mean"), ("held-out", "val/num_turns/mean"))),
    (
        "KL divergence",
        number,
        (
            ("to the old policy", "actor/ppo_kl"),
            ("to the reference", "actor/kl_loss"),
            ("to the reference, in the reward", "kl/reward_mean"),
        ),
    ),
    ("Coefficient of the KL in the reward", number, (("coefficient", "kl/reward_coef"),)),
    ("Pairs ranked right", percent, (("training", "actor/accuracy"),)),
    (
        "Preference, log-ratio times beta",
        number,
        (("margin", "actor/margin"), ("chosen", "actor/chosen_rewards"), ("rejected", "actor/rejected_rewards")),
    ),
    ("Samples that the loss reads", percent, (("kept", "kept/samples"),)),
    (
        "Groups of a step",
        number,
        (("drawn", "sampling/drawn"), ("taught nothing", "sampling/filtered")),
    ),
    (
        "Clipped tokens",
        percent,
        (("by the clip", "actor/pg_clipfrac"), ("by the dual clip", "actor/pg_clipfrac_lower")),
    ),
    ("Entropy", number, (("policy", "actor/entropy"),)),
    ("Loss", number, (("training", "actor/loss"), ("held-out", "val/loss"), ("critic", "critic/vf_loss"))),
    ("Explained by the critic", percent, (("of the returns", "critic/vf_explained_var"),)),
    ("Gradient norm", number, (("before clipping", "actor/grad_norm"), ("critic", "critic/grad_norm"))),
    ("Learning rate", number, (("learning rate", "actor/lr"), ("critic", "critic/lr"))),
    (
        "Seconds a step",
        number,
        (
            ("whole", "timing_s/step"),
            ("collect", "timing_s/collect"),
            ("learn", "timing_s/learn"),
            ("publish", "timing_s/publish"),
            ("wait for rollouts", "timing_s/wait_rollouts"),
        ),
    ),
    ("Tokens a second", number, (("tokens a second", "perf/tokens_per_s"),)),
    ("Context from the cache", percent, (("all turns", "engine/cached_share"), ("later turns", _LATER_CACHED))),
    (
        "Engine from backend, nats a token",
        number,
        (
            ("mean", "mismatch/current/mean"),
            ("k3", "mismatch/current/k3"),
            ("just published, mean", "publish/probe_mean_diff"),
        ),
    ),
    ("Staleness, versions", number, (("mean", "staleness/mean"), ("most", "staleness/max"))),
    (
        "Work beside training",
        percent,
        (
            ("engine idle", "staleness/engine_idle"),
            ("groups begun again", "staleness/requeued_share"),
            ("rollouts of several versions", "staleness/partial"),
        ),
    ),
)


def charts(history: History) -> tuple[list[Chart], list[Chart]]:
    """(the charts a reader looks at first, one chart for each metric that is in none of them)."""
    main = [
        Chart(title, [Series(label, points) for label, name in lines if (points := _points(history, name))], write)
        for title, write, lines in _CHARTS
    ]
    main.insert(4, Chart("Tool calls by outcome", _outcome_shares(history), percent))
    main.insert(5, Chart("Guards raised", _guard_shares(history), percent))
    shown = {name for _, _, lines in _CHARTS for _, name in lines} | {"step", *_guards(history)}
    names = sorted({name for row in history for name in row} - shown)
    rest = [Chart(name, [Series(name, points)]) for name in names if (points := _points(history, name))]
    return [chart for chart in main if chart.series], rest


def _points(history: History, name: str) -> list[Point]:
    return [(row["step"], row[name]) for row in history if abs(row.get(name, math.inf)) <= _LARGEST]


def _outcome_shares(history: History) -> list[Series]:
    shares: dict[str, list[Point]] = {}
    counted = [(row["step"], tool_outcomes(row)) for row in history]
    for outcome in dict.fromkeys(outcome for _, counts in counted for outcome in counts):
        shares[outcome] = [(step, counts.get(outcome, 0) / sum(counts.values())) for step, counts in counted if counts]
    return [Series(outcome.replace("_", " "), points) for outcome, points in shares.items()]


def _guard_shares(history: History) -> list[Series]:
    """Of the guards that any rollout raised."""
    series = [
        Series(name.removeprefix(GUARD_METRICS).replace("_", " "), _points(history, name)) for name in _guards(history)
    ]
    return [each for each in series if any(share for _, share in each.points)]


def _guards(history: History) -> list[str]:
    return sorted({name for row in history for name in row if name.startswith(GUARD_METRICS)})
