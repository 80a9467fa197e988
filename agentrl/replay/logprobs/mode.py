"""`logprobs`: log-probabilities of saved tokens under another checkpoint; its KL and its estimated reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.replay.base import ALL, Cell, Replay, Result, Table
from agentrl.replay.logprobs.checkpoint_scores import ScoredRollout, score_rollouts
from agentrl.replay.logprobs.clipping import clip_of, told_clip
from agentrl.replay.logprobs.off_policy import MAX_LOG, Episode, OffPolicy, off_policy
from agentrl.replay.logprobs.ratios import Figures, Ratios, figures
from agentrl.replay.settings import replay_config, with_model
from agentrl.stats.base import plain
from agentrl.trainer.builders.rollouts import sampling_of


def logprobs(replay: Replay) -> Result:
    """Score the saved tokens under `model.path` of the command line.

    Raises:
        ConfigError: `model.path` is missing, or the model cannot be used or has another vocabulary.
        DataError: no rollout has sampled tokens.
    """
    config = _config(replay)
    scored, left_out = score_rollouts(replay, config)
    parts = {str(step): list(part) for step, part in groupby(scored, key=lambda rollout: rollout.step)}
    if len(parts) > 1:
        parts[ALL] = scored
    clip = clip_of(config)
    found = {name: figures(part, replay.options.level, clip) for name, part in parts.items()}
    *_, overall = found.values()
    no_ratios = _why_no_ratios(config, replay)
    rewards = {} if no_ratios else _rewards(parts, replay.options.level)
    left_out_notes = [f"Left out: {count:,} rollouts {reason}." for reason, count in left_out.items()]
    tables = [distance_table(found, [*left_out_notes, *([no_ratios] if no_ratios else ())])]
    tables += [] if no_ratios else [ratio_table(overall, told_clip(config, clip))]
    tables += [reward_table([*rewards.values()][-1]), *rewards_by_step(rewards)] if rewards else []
    values = {
        "model": config.model.path,
        "left_out": left_out,
        "no_ratios": no_ratios,
        "figures": {name: asdict(each) for name, each in found.items()},
        "rewards": {name: asdict(each) for name, each in rewards.items()},
    }
    told = f"{overall.tokens.num:,} tokens of {len(scored):,} rollouts under {config.model.path}: perplexity"
    summary = f"{told} {overall.perplexity:.4g}, when sampled {overall.sampled_perplexity:.4g}; KL {overall.k3} a token"
    return Result("logprobs", summary, tables, {name: plain(value) for name, value in values.items()})


def _config(replay: Replay) -> RunConfig:
    """The saved configuration, with the model of the command line in place of the run's model."""
    asked = replay.options.overrides.get("model")
    if not isinstance(asked, Mapping) or "path" not in asked:
        raise ConfigError("logprobs: name the checkpoint that scores the tokens, model.path=RUN/checkpoints/step-60")
    return with_model(replay_config(replay), replay.options.overrides)


def _why_no_ratios(config: RunConfig, replay: Replay) -> str | None:
    """Why the saved log-probabilities are not those of the sampling distribution; None if they are."""
    if not replay.run.config:
        return "No importance ratios: how the rollouts were sampled was not kept."
    sampling = sampling_of(config.rollout, replay.run.split)
    if sampling.temperature == 0:
        return "No importance ratios, and what stands under KL is none: the rollouts are greedy, nothing was sampled."
    if sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0:
        return "No importance ratios: top-p, top-k or min-p cut the distribution that was sampled from."
    return None


def _rewards(parts: Mapping[str, Sequence[ScoredRollout]], level: float) -> dict[str, OffPolicy]:
    """Reward estimates of each part that has scores."""
    episodes = {
        name: [_episode(each, each.score) for each in part if each.score is not None] for name, part in parts.items()
    }
    return {name: off_policy(part, level) for name, part in episodes.items() if part}


def _episode(rollout: ScoredRollout, score: float) -> Episode:
    ratios = rollout.log_ratios
    addressed = [(float(ratios[:count].sum()), value) for count, value in rollout.addressed]
    return Episode(rollout.task, float(ratios.sum()), score, addressed)


def distance_table(found: Mapping[str, Figures], notes: Sequence[str]) -> Table:
    """One row per step; the last row is over all steps."""
    rows: list[list[Cell]] = [
        [name, _span(each.versions), each.sampled_perplexity, each.perplexity, each.k3] for name, each in found.items()
    ]
    *_, overall = found.values()
    columns = ("step", "version", "sampled perplexity", "perplexity now", "KL")
    told = "KL(sampling policy || checkpoint) in nats a token, by k3, cut at 10 a token as in training."
    told += f" By k1: {overall.k1}."
    return Table("Distance, token by token", columns, rows, "\n".join([told, *notes]))


def ratio_table(found: Figures, clip: str) -> Table:
    """Importance ratios, checkpoint over sampling policy, over all steps; `clip` is the sentence on clipping."""
    return Table(
        "Importance ratios",
        ("of a", "number", "1%", "median", "99%", "largest", "effective share", "clipped"),
        [_ratio_row("token", found.tokens), _ratio_row("rollout", found.rollouts)],
        f"Effective share: Kish's. {clip}",
    )


def reward_table(found: OffPolicy) -> Table:
    """Reward estimates over all steps."""
    rows: list[list[Cell]] = [
        ["as sampled", found.sampled],
        ["checkpoint, ordinary", found.ordinary],
        ["checkpoint, weighted", found.weighted],
        ["checkpoint, per decision", found.per_decision],
        ["mean ratio", found.mean_ratio],
    ]
    notes = [f"{found.num_effective:.4g} of {found.num:,} rollouts are effective; the mean ratio should be 1."]
    if found.uncovered:
        notes.append("It is far from it: what the checkpoint does was hardly sampled, and no interval tells of that.")
    if not found.by_turn:
        notes.append("Per decision is the ordinary one: not in every rollout do turn rewards sum to the score.")
    if found.ordinary is None or found.per_decision is None:
        notes.append("An estimate without a value has ratios beyond what a float holds.")
    if found.too_few:
        notes.append("Too few are effective: the estimates mean nothing, the checkpoint is too far from what sampled.")
    return Table("Reward of the checkpoint, by importance sampling", ("", "reward"), rows, "\n".join(notes))


def rewards_by_step(found: Mapping[str, OffPolicy]) -> list[Table]:
    """One row per step; no table if there is only one step."""
    rows: list[list[Cell]] = [
        [name, each.num, each.sampled, each.weighted, "too few" if each.too_few else f"{each.num_effective:.4g}"]
        for name, each in found.items()
    ]
    columns = ("step", "rollouts", "as sampled", "checkpoint, weighted", "effective")
    return [Table("Reward of the checkpoint, step by step", columns, rows)] if len(rows) > 1 else []


def _span(versions: Sequence[int]) -> str:
    first, last = versions[0], versions[-1]
    return str(first) if first == last else f"{first} to {last}"


def _ratio_row(name: str, ratios: Ratios) -> list[Cell]:
    quantiles = [_ratio(log) for log in ratios.log_quantiles]
    return [name, ratios.num, *quantiles, ratios.effective_share, ratios.clipped]


def _ratio(log: float) -> Cell:
    return math.exp(log) if abs(log) < MAX_LOG else f"e^{log:.4g}"
