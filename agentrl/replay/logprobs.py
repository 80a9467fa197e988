"""`logprobs`: saved tokens under another checkpoint: how far it is from the policy that sampled; what it would earn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from agentrl.config import RunConfig
from agentrl.engines.base import SamplingParams
from agentrl.errors import ConfigError
from agentrl.replay.base import Replay, Result
from agentrl.replay.checkpoint_scores import ScoredRollout, score_rollouts
from agentrl.replay.logprob_tables import ALL, distance_table, ratio_table, reward_table, rewards_by_step
from agentrl.replay.off_policy import Episode, OffPolicy, off_policy
from agentrl.replay.output_json import plain
from agentrl.replay.ratios import figures
from agentrl.replay.settings import replay_config


def logprobs(replay: Replay) -> Result:
    """Score the saved tokens under `model.path` of the command line.

    Raises:
        ConfigError: no `model.path`, or a model that cannot be used, or with another vocabulary.
        DataError: no rollout has sampled tokens.
    """
    config = _config(replay)
    scored, left_out = score_rollouts(replay, config)
    parts = {str(step): list(part) for step, part in groupby(scored, key=lambda rollout: rollout.step)}
    if len(parts) > 1:
        parts[ALL] = scored
    found = {name: figures(part, replay.options.level, config.actor) for name, part in parts.items()}
    *_, overall = found.values()
    no_ratios = _why_no_ratios(config, replay)
    rewards = {} if no_ratios else _rewards(parts, replay.options.level)
    left_out_notes = [f"Left out: {count:,} rollouts {reason}." for reason, count in left_out.items()]
    tables = [distance_table(found, [*left_out_notes, *([no_ratios] if no_ratios else ())])]
    tables += [] if no_ratios else [ratio_table(overall, config.actor)]
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
    """What the run kept, with the model of the command line and nothing of the run's own."""
    asked = replay.options.overrides.get("model")
    if not isinstance(asked, Mapping) or "path" not in asked:
        raise ConfigError("logprobs: name the checkpoint that scores the tokens, model.path=RUN/checkpoints/step-60")
    config = replay_config(replay)
    own = {"lora_rank": 0, "lora_adapter_path": None, "tokenizer_path": None, "chat_template": None}
    kept = {name: value for name, value in own.items() if name not in asked}
    return config.model_copy(update={"model": config.model.model_copy(update=kept)})


def _why_no_ratios(config: RunConfig, replay: Replay) -> str | None:
    """Why the kept log-probabilities are not of the distribution that was sampled from, where they are not."""
    if not replay.run.config:
        return "No importance ratios: how the rollouts were sampled was not kept."
    sampling = _sampling(config, replay.run.split)
    if sampling.temperature == 0:
        return "No importance ratios, and what stands under KL is none: the rollouts are greedy, nothing was sampled."
    if sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0:
        return "No importance ratios: top-p, top-k or min-p cut the distribution that was sampled from."
    return None


def _sampling(config: RunConfig, split: str) -> SamplingParams:
    """How rollouts of `split` are sampled."""
    train, val = config.rollout, config.rollout.val_kwargs
    if split != "val":
        return SamplingParams(train.temperature, train.top_p, train.top_k, train.min_p)
    return SamplingParams(val.temperature, val.top_p, val.top_k) if val.do_sample else SamplingParams(0.0)


def _rewards(parts: Mapping[str, Sequence[ScoredRollout]], level: float) -> dict[str, OffPolicy]:
    """Of each part that has scores."""
    episodes = {
        name: [_episode(each, each.score) for each in part if each.score is not None] for name, part in parts.items()
    }
    return {name: off_policy(part, level) for name, part in episodes.items() if part}


def _episode(rollout: ScoredRollout, score: float) -> Episode:
    ratios = rollout.log_ratios
    addressed = [(float(ratios[:count].sum()), value) for count, value in rollout.addressed]
    return Episode(rollout.task, float(ratios.sum()), score, addressed)
