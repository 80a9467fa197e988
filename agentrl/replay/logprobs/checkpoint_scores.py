"""Log-probabilities of the sampled tokens: at sampling time, and under another checkpoint."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from agentrl.algos.credit import samples_of
from agentrl.backends.base import Backend, ModelRequest, load_backend
from agentrl.config import RunConfig
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError, DataError, Kind
from agentrl.models.loading import load_tokenizer
from agentrl.replay.base import Replay
from agentrl.replay.compare.pairs import TaskKey, task_key
from agentrl.replay.saved_run import SavedRun
from agentrl.replay.tokenizer import changed
from agentrl.stats.intervals import Floats
from agentrl.store import StoredRollout
from agentrl.store.schema import VOCABULARY
from agentrl.types.rollout import Group, Rollout
from agentrl.types.sample import Sample

COLUMNS = (
    *("messages", "data_source", "index", "rewards", "turn_rewards", "infra_failed"),
    "trajectories.segments",
)
"""The columns to read."""


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """Log-probabilities of the N tokens that were sampled in all trajectories of a rollout.

    Attributes:
        versions: the policy versions that sampled the rollout.
        score: None if the rollout has no score.
        sampled: [N], log-probabilities under the policy that sampled the tokens; saved with the tokens.
        checkpoint: [N], log-probabilities under the checkpoint, at the same temperature.
        turn_rewards: for each turn reward, (number of tokens sampled up to the end of the turn, reward).
    """

    step: int
    task: TaskKey
    versions: frozenset[int]
    score: float | None
    sampled: Floats
    checkpoint: Floats
    turn_rewards: Sequence[tuple[int, float]]

    @property
    def log_ratios(self) -> Floats:
        """[N], log-probability under the checkpoint minus log-probability when sampled."""
        return self.checkpoint - self.sampled


def score_rollouts(replay: Replay, config: RunConfig) -> tuple[list[ScoredRollout], Counter[str]]:
    """Compute log-probabilities of all sampled tokens under the model of `config`. Count skipped rollouts by reason.

    Raises:
        ConfigError: the model cannot be used, or its vocabulary differs from the vocabulary of the run.
        DataError: no rollout can be scored; the message counts the reasons.
    """
    _check_vocabulary(replay.run, config.model)
    backend = load_backend(config, ModelRequest(config.model, config.actor, trainable=False))
    return asyncio.run(_score(replay, backend))


async def _score(replay: Replay, backend: Backend) -> tuple[list[ScoredRollout], Counter[str]]:
    left_out: Counter[str] = Counter()
    scored: list[ScoredRollout] = []
    try:
        for step in _steps(replay.run):
            usable = [(stored, samples) for stored in step if (samples := _samples(stored, left_out))]
            samples = [sample for _, mine in usable for sample in mine]
            _check_ids(samples, backend, replay.run)
            logprobs = iter((await backend.score(samples)).logprobs if samples else ())
            scored += [_scored(replay, stored, mine, [next(logprobs) for _ in mine]) for stored, mine in usable]
    finally:
        await backend.close()
    if not scored:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise DataError(f"'{replay.run.name}': no rollout can be scored ({reasons})")
    return scored, left_out


def _steps(run: SavedRun) -> Iterator[list[StoredRollout]]:
    """The rollouts of each step. A step is scored in one call, so that a prefix shared by a group is computed once."""
    return (list(members) for _, members in groupby(run.rollouts(COLUMNS), key=lambda stored: stored.step))


def _samples(stored: StoredRollout, left_out: Counter[str]) -> list[Sample]:
    """Return a sample per trajectory with sampled tokens. A rollout that cannot be used is counted in `left_out`."""
    if reason := _why_not(stored.rollout):
        left_out[reason] += 1
        return []
    return samples_of([Group(stored.task, [stored.rollout])])


def _why_not(rollout: Rollout) -> str | None:
    if not any(trajectory.segments for trajectory in rollout.trajectories):
        return "without tokens"
    if rollout.failed:
        return "failed"
    if any(trajectory.media for trajectory in rollout.trajectories):
        return "with images"
    if not all(trajectory.sampled for trajectory in rollout.trajectories):
        return "with demonstrations"
    return None if rollout.valid else "without sampled tokens"


def _scored(
    replay: Replay, stored: StoredRollout, samples: Sequence[Sample], logprobs: Sequence[Sequence[float]]
) -> ScoredRollout:
    sampled = [_trained(sample, sample.behaviour_logprobs or ()) for sample in samples]
    checkpoint = [_trained(sample, values) for sample, values in zip(samples, logprobs, strict=True)]
    return ScoredRollout(
        stored.step,
        task_key(stored.task),
        frozenset(stored.rollout.policy_versions),
        replay.score(stored),
        np.concatenate(sampled),
        np.concatenate(checkpoint),
        _turn_rewards(stored.rollout),
    )


def _trained(sample: Sample, values: Sequence[float]) -> Floats:
    trained: Floats = np.asarray(values, np.float64)[np.asarray(sample.loss_mask, bool)]
    return trained


def _turn_rewards(rollout: Rollout) -> list[tuple[int, float]]:
    masks = [[0, *trajectory.loss_mask[1:]] for trajectory in rollout.trajectories]  # first token: never trained
    rewards = []
    for reward in rollout.turn_rewards:
        before = sum(map(sum, masks[: reward.trajectory]))
        segments = rollout.trajectories[reward.trajectory].segments[: reward.segment + 1]
        rewards.append((before + sum(masks[reward.trajectory][: sum(map(len, segments))]), reward.value))
    return rewards


def _check_vocabulary(run: SavedRun, model: ModelConfig) -> None:
    """Refuse a model whose vocabulary differs from the run's. A model without a tokenizer is not checked."""
    tokenizer = load_tokenizer(model)
    step = changed(tokenizer, run.provenances).get(VOCABULARY) if tokenizer else None
    if step is not None:
        raise ConfigError.at(
            "model.path",
            Kind.CONFLICT,
            f"model.path '{model.path}': its vocabulary differs from the one that made the rollouts of"
            f" '{run.name}' (step {step}), so the same token ids mean different text",
        )


def _check_ids(samples: Sequence[Sample], backend: Backend, run: SavedRun) -> None:
    largest = max((max(sample.token_ids) for sample in samples), default=0)
    size = backend.vocabulary_size
    if largest >= size:
        raise ConfigError.at(
            "model.path",
            Kind.CONFLICT,
            f"'{run.name}' contains token id {largest}, but the model has only {size}: use a model of the same family",
        )
