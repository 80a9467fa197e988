"""Saved groups credited anew, by the code that training credits with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from agentrl.algos.build import BuiltAlgorithm
from agentrl.attempt import Group, Rollout, Stop
from agentrl.errors import DataError
from agentrl.replay.base import Key, Replay, key_of
from agentrl.replay.stored_scores import COLUMNS as COLUMNS_OF_SCORES
from agentrl.replay.stored_scores import scored_samples
from agentrl.store import StoredRollout
from agentrl.store.credited import Advantages, advantages_of

COLUMNS = ("data_source", "index", "rewards", "turn_rewards", "error", "infra_failed")
COLUMNS_OF_TOKENS = ("trajectories.segments", "trajectories.advantages")

_BY_REWARD = "reward: "
"""How the runner begins the error of a rollout that only its reward has failed on."""


@dataclass(frozen=True, slots=True)
class Credit:
    """A rollout's advantages as they were and as they would be, [its trained tokens]; None where it took no part."""

    key: Key
    before: NDArray[np.float64] | None
    after: NDArray[np.float64] | None
    score_before: float | None
    score_after: float | None

    @property
    def means(self) -> tuple[float | None, float | None]:
        """The mean advantage of its trained tokens, before and after."""
        return _mean(self.before), _mean(self.after)

    @property
    def change(self) -> float:
        """By how much that mean changed; 0 where it took no part at one of the times."""
        before, after = self.means
        return 0.0 if before is None or after is None else after - before


def credited_anew(replay: Replay, algorithm: BuiltAlgorithm) -> Iterator[list[Credit]]:
    """The rollouts of each group, a step at a time: an estimator may look at all groups of a step.

    What was scored for training is taken from the store; so is the coefficient of a KL in the reward, unless an
    override says it.

    Raises:
        DataError: rollouts without tokens, without advantages to compare with, or without scores that are needed.
    """
    rollouts = replay.run.rollouts([*COLUMNS, *COLUMNS_OF_TOKENS, *COLUMNS_OF_SCORES])
    for step, of_step in groupby(rollouts, key=lambda stored: stored.step):
        groups = [list(members) for _, members in groupby(of_step, key=lambda stored: stored.task.uid)]
        _check(replay, step, groups)
        scored = [Group(members[0].task, [with_new_score(replay, stored) for stored in members]) for members in groups]
        samples = algorithm.credit(scored, scored_samples(replay, algorithm, groups, scored))
        advantages = advantages_of(scored, samples)
        for members in groups:
            yield [_credit(replay, stored, next(advantages)) for stored in members]
        next(advantages, None)  # no sample is left, or it says so


def _check(replay: Replay, step: int, groups: Sequence[Sequence[StoredRollout]]) -> None:
    rollouts = list(chain.from_iterable(groups))
    if not any(trajectory.segments for stored in rollouts for trajectory in stored.rollout.trajectories):
        raise DataError(f"'{replay.run.name}': the rollouts of step {step} have no tokens that could be credited")
    if all(advantages is None for stored in rollouts for advantages in stored.advantages):
        raise DataError(
            f"'{replay.run.name}': no advantages were kept of step {step} of split '{replay.run.split}':"
            " only rollouts that were trained on have some"
        )


def with_new_score(replay: Replay, stored: StoredRollout) -> Rollout:
    """The rollout with the score that this command goes by; as in training, without one it takes no part."""
    rollout = stored.rollout
    if not replay.scores or rollout.stop is Stop.ERROR:
        return rollout
    score = replay.score(stored)
    failed_otherwise = rollout.infra_failed and not (rollout.error or "").startswith(_BY_REWARD)
    rewards = {**rollout.rewards, **({} if score is None else {"score": score})}
    return replace(rollout, rewards=rewards, infra_failed=failed_otherwise or score is None)


def _credit(replay: Replay, stored: StoredRollout, after: Sequence[Advantages]) -> Credit:
    scores = stored.rollout.rewards.get("score"), replay.score(stored)
    return Credit(key_of(stored), _trained(stored, stored.advantages), _trained(stored, after), *scores)


def _trained(stored: StoredRollout, advantages: Sequence[Advantages]) -> NDArray[np.float64] | None:
    kept = [
        np.asarray(values)[np.asarray([0, *trajectory.loss_mask[1:]], bool)]
        for trajectory, values in zip(stored.rollout.trajectories, advantages, strict=True)
        if values is not None
    ]
    return np.concatenate(kept) if kept else None


def _mean(values: NDArray[np.float64] | None) -> float | None:
    return None if values is None else float(values.mean())
