"""Attach the saved log-probabilities and critic values to samples whose advantages are recomputed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain

from agentrl.algos.base import Need
from agentrl.algos.build import BuiltAlgorithm
from agentrl.algos.kl_reward import KLReward
from agentrl.errors import DataError
from agentrl.replay.base import Replay
from agentrl.replay.trusted_config import lookup
from agentrl.store import Scores, StoredRollout
from agentrl.store.credited import samples_by_rollout
from agentrl.store.schema import SCORES
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample

COLUMNS = tuple(f"trajectories.{name}" for name in (*SCORES, "kl_coef"))


def scored_samples(
    replay: Replay,
    algorithm: BuiltAlgorithm,
    stored: Sequence[Sequence[StoredRollout]],
    groups: Sequence[Group],
) -> list[Sample]:
    """Return the samples of a step's `groups` with their saved scores (log-probabilities and values).

    Samples that lack a required score are dropped, as in training. The coefficient of a KL penalty in the reward is set
    to the saved coefficient, unless an override sets it.

    Args:
        stored: the rollouts of each group, read with `COLUMNS`.

    Raises:
        DataError: a required score is missing in all samples of the step.
    """
    samples = list(_with_scores(groups, algorithm.samples(groups), chain.from_iterable(stored)))
    needs = list(_read_by_credit(algorithm))
    for need, by in needs:
        if samples and all(getattr(sample, need) is None for sample in samples):
            raise DataError(
                f"'{replay.run.name}': {need} of step {stored[0][0].step} are not saved, but {by} needs them;"
                " a run saves them only if its own training needs them (schema version 3 or later)"
            )
    if algorithm.kl_reward is not None and lookup(replay.options.overrides, "algorithm.kl_ctrl") is None:
        _set_coefficient(algorithm.kl_reward, samples)
    return [sample for sample in samples if all(getattr(sample, need) is not None for need, _ in needs)]


def _with_scores(
    groups: Sequence[Group], samples: Sequence[Sample], rollouts: Iterable[StoredRollout]
) -> Iterator[Sample]:
    for found, stored in zip(samples_by_rollout(groups, samples), rollouts, strict=True):
        for sample, scores in zip(found, stored.scores, strict=True):
            if sample is not None:
                yield _scored(sample, scores)


def _scored(sample: Sample, scores: Scores) -> Sample:
    return replace(sample, **asdict(scores))


def _read_by_credit(algorithm: BuiltAlgorithm) -> Iterator[tuple[Need, str]]:
    """Yield each score that advantages are computed from, with the configuration key that requires the score.

    Scores that only the loss needs are skipped.
    """
    if "values" in algorithm.needs:
        yield "values", "algorithm.adv_estimator"
    if algorithm.kl_reward is not None:
        yield "ref_logprobs", "algorithm.use_kl_in_reward"


def _set_coefficient(reward: KLReward, samples: Sequence[Sample]) -> None:
    if saved := next((sample.kl_coef for sample in samples if sample.kl_coef), 0.0):
        reward.control.value = saved
