"""What `logprobs` found, as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentrl.config.actor import ActorConfig
from agentrl.replay.base import Cell, Table
from agentrl.replay.off_policy import MAX_LOG, OffPolicy
from agentrl.replay.ratios import Figures, Ratios

ALL = "all"
"""What the line over every step is called."""

FEW = 10.0
"""With fewer effective rollouts, and less than half of them effective, an estimate says nothing."""


def distance_table(found: Mapping[str, Figures], notes: Sequence[str]) -> Table:
    """A line a step, the last over all."""
    rows: list[list[Cell]] = [
        [name, _span(each.versions), each.sampled_perplexity, each.perplexity, each.k3] for name, each in found.items()
    ]
    *_, overall = found.values()
    columns = ("step", "version", "sampled perplexity", "perplexity now", "KL")
    told = "KL(sampling policy || checkpoint) in nats a token, by k3, cut at 10 a token as in training."
    told += f" By k1: {overall.k1}."
    return Table("Distance, token by token", columns, rows, "\n".join([told, *notes]))


def ratio_table(found: Figures, actor: ActorConfig) -> Table:
    """Importance ratios, checkpoint over sampling policy, over all steps."""
    clip = f"{1 - actor.clip_low:.4g} to {1 + actor.clip_high:.4g}"
    return Table(
        "Importance ratios",
        ("of a", "number", "1%", "median", "99%", "largest", "effective share", "clipped"),
        [_ratio_row("token", found.tokens), _ratio_row("rollout", found.rollouts)],
        f"Effective share: Kish's. Clipped: outside {clip}, the kept clip.",
    )


def reward_table(found: OffPolicy) -> Table:
    """The estimates over all steps."""
    rows: list[list[Cell]] = [
        ["as sampled", found.sampled],
        ["checkpoint, ordinary", found.ordinary],
        ["checkpoint, weighted", found.weighted],
        ["checkpoint, per decision", found.per_decision],
        ["mean ratio", found.mean_ratio],
    ]
    notes = [f"{found.num_effective:.4g} of {found.num:,} rollouts are effective; the mean ratio should be 1."]
    if _uncovered(found):
        notes.append("It is not: part of what the checkpoint does was never sampled, and the intervals do not tell.")
    if found.ordinary is None or found.per_decision is None:
        notes.append("An estimate without a value has ratios beyond what a float holds.")
    if _too_few(found):
        notes.append("Too few are effective: the estimates mean nothing, the checkpoint is too far from what sampled.")
    return Table("Reward of the checkpoint, by importance sampling", ("", "reward"), rows, "\n".join(notes))


def rewards_by_step(found: Mapping[str, OffPolicy]) -> list[Table]:
    """A line a step where there are several."""
    rows: list[list[Cell]] = [
        [name, each.num, each.sampled, each.weighted, "too few" if _too_few(each) else f"{each.num_effective:.4g}"]
        for name, each in found.items()
    ]
    columns = ("step", "rollouts", "as sampled", "checkpoint, weighted", "effective")
    return [Table("Reward of the checkpoint, step by step", columns, rows)] if len(rows) > 1 else []


def _too_few(found: OffPolicy) -> bool:
    return found.num_effective < min(FEW, found.num / 2)


def _uncovered(found: OffPolicy) -> bool:
    """Whether 1 is not within the interval of the mean ratio, which over endless rollouts it is."""
    mean = found.mean_ratio
    return mean is None or (mean.low is not None and mean.high is not None and not mean.low <= 1 <= mean.high)


def _span(versions: Sequence[int]) -> str:
    first, last = versions[0], versions[-1]
    return str(first) if first == last else f"{first} to {last}"


def _ratio_row(name: str, ratios: Ratios) -> list[Cell]:
    quantiles = [_ratio(log) for log in ratios.log_quantiles]
    return [name, ratios.num, *quantiles, ratios.effective_share, ratios.clipped]


def _ratio(log: float) -> Cell:
    return math.exp(log) if abs(log) < MAX_LOG else f"e^{log:.4g}"
