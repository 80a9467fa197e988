"""`logprobs`: for another checkpoint, compute log-probabilities of the saved tokens, KL and a reward estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, Kind
from agentrl.replay.base import ALL, Cell, Replay, Result, Table
from agentrl.replay.logprobs.checkpoint_scores import ScoredRollout, score_rollouts
from agentrl.replay.logprobs.clipping import clip_of, describe_clip
from agentrl.replay.logprobs.off_policy import MAX_LOG, Episode, OffPolicy, off_policy
from agentrl.replay.logprobs.ratios import Figures, Ratios, figures
from agentrl.replay.settings import replay_config, with_model
from agentrl.stats.base import plain
from agentrl.trainer.builders.rollouts import sampling_of


def logprobs(replay: Replay) -> Result:
    """Compute log-probabilities of the saved tokens under the model that `model.path` on the command line names.

    Raises:
        ConfigError: `model.path` is missing, the model cannot be used, or its vocabulary differs from the run's.
        DataError: no rollout can be scored.
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
    left_out_notes = [f"Skipped: {count:,} rollouts {reason}." for reason, count in left_out.items()]
    tables = [distance_table(found, [*left_out_notes, *([no_ratios] if no_ratios else ())])]
    tables += [] if no_ratios else [ratio_table(overall, describe_clip(config, clip))]
    tables += [reward_table([*rewards.values()][-1]), *rewards_by_step(rewards)] if rewards else []
    values = {
        "model": config.model.path,
        "left_out": left_out,
        "no_ratios": no_ratios,
        "figures": {name: asdict(each) for name, each in found.items()},
        "rewards": {name: asdict(each) for name, each in rewards.items()},
    }
    summary = f"{overall.tokens.num:,} tokens of {len(scored):,} rollouts under {config.model.path}: perplexity"
    summary += f" {overall.perplexity:.4g}, when sampled {overall.sampled_perplexity:.4g}; KL {overall.k3} per token"
    return Result("logprobs", summary, tables, {name: plain(value) for name, value in values.items()})


def _config(replay: Replay) -> RunConfig:
    """The saved configuration, with the model of the command line in place of the run's model."""
    model = replay.options.overrides.get("model")
    if not isinstance(model, Mapping) or "path" not in model:
        raise ConfigError.at(
            "model.path",
            Kind.MISSING,
            "logprobs: give the checkpoint to compute them with, for example model.path=RUN/checkpoints/step-60",
        )
    return with_model(replay_config(replay), replay.options.overrides)


def _why_no_ratios(config: RunConfig, replay: Replay) -> str | None:
    """Why importance ratios cannot be computed from the saved log-probabilities; None if they can."""
    if not replay.run.config:
        return "No importance ratios: the run did not save how the rollouts were sampled."
    sampling = sampling_of(config.rollout, replay.run.split)
    if sampling.temperature == 0:
        return "No importance ratios, and KL is not a divergence here: the rollouts are greedy (temperature 0)."
    if sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0:
        return "No importance ratios: the rollouts were sampled with top-p, top-k or min-p."
    return None


def _rewards(parts: Mapping[str, Sequence[ScoredRollout]], level: float) -> dict[str, OffPolicy]:
    """Reward estimates of each entry of `parts` that has scores."""
    episodes = {
        name: [_episode(each, each.score) for each in part if each.score is not None] for name, part in parts.items()
    }
    return {name: off_policy(part, level) for name, part in episodes.items() if part}


def _episode(rollout: ScoredRollout, score: float) -> Episode:
    ratios = rollout.log_ratios
    turn_rewards = [(float(ratios[:count].sum()), value) for count, value in rollout.turn_rewards]
    return Episode(rollout.task, float(ratios.sum()), score, turn_rewards)


def distance_table(found: Mapping[str, Figures], notes: Sequence[str]) -> Table:
    """Return a table of perplexities and KL per step. If there are several steps, the last row is over all steps."""
    rows: list[list[Cell]] = [
        [name, _span(each.versions), each.sampled_perplexity, each.perplexity, each.k3] for name, each in found.items()
    ]
    *_, overall = found.values()
    columns = ("step", "version", "sampled perplexity", "new perplexity", "KL")
    estimators = "KL(sampling policy || checkpoint) in nats per token. Estimator k3, clipped at 10 as in training."
    estimators += f" Estimator k1: {overall.k1}."
    return Table("Distance per token", columns, rows, "\n".join([estimators, *notes]))


def ratio_table(found: Figures, clip: str) -> Table:
    """Importance ratios (checkpoint / sampling policy) over all steps; `clip` is the sentence about clipping."""
    return Table(
        "Importance ratios",
        ("per", "number", "1%", "median", "99%", "maximum", "effective share", "clipped"),
        [_ratio_row("token", found.tokens), _ratio_row("rollout", found.rollouts)],
        f"Effective share: effective sample size (Kish) divided by the number. {clip}",
    )


def reward_table(found: OffPolicy) -> Table:
    """Return a table of reward estimates over all steps."""
    rows: list[list[Cell]] = [
        ["as sampled", found.sampled],
        ["checkpoint, ordinary", found.ordinary],
        ["checkpoint, weighted", found.weighted],
        ["checkpoint, per decision", found.per_decision],
        ["mean ratio", found.mean_ratio],
    ]
    notes = [f"{found.num_effective:.4g} of {found.num:,} rollouts are effective (Kish). The mean ratio should be 1."]
    if found.uncovered:
        notes.append(
            "The mean ratio is not near 1: the rollouts are not typical of the checkpoint. The intervals ignore this."
        )
    if not found.by_turn:
        notes.append("Per decision equals ordinary: in some rollouts the turn rewards do not sum to the score.")
    if found.ordinary is None or found.per_decision is None:
        notes.append("No value for an estimate: a ratio overflows a float.")
    if found.too_few:
        notes.append("Too few effective rollouts: the checkpoint differs too much, and the estimates are unreliable.")
    return Table("Reward of the checkpoint, estimated by importance sampling", ("", "reward"), rows, "\n".join(notes))


def rewards_by_step(found: Mapping[str, OffPolicy]) -> list[Table]:
    """Return a table of reward estimates per step and over all steps; no table if there is only one step."""
    rows: list[list[Cell]] = [
        [name, each.num, each.sampled, each.weighted, "too few" if each.too_few else f"{each.num_effective:.4g}"]
        for name, each in found.items()
    ]
    columns = ("step", "rollouts", "as sampled", "checkpoint, weighted", "effective")
    return [Table("Reward of the checkpoint per step", columns, rows)] if len(rows) > 1 else []


def _span(versions: Sequence[int]) -> str:
    first, last = versions[0], versions[-1]
    return str(first) if first == last else f"{first} to {last}"


def _ratio_row(name: str, ratios: Ratios) -> list[Cell]:
    quantiles = [_ratio(log) for log in ratios.log_quantiles]
    return [name, ratios.num, *quantiles, ratios.effective_share, ratios.clipped]


def _ratio(log: float) -> Cell:
    return math.exp(log) if abs(log) < MAX_LOG else f"e^{log:.4g}"
