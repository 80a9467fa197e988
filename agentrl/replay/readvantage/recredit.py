"""Recompute the advantages of saved groups, with the same code as training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from agentrl.algos.build import BuiltAlgorithm
from agentrl.errors import DataError
from agentrl.replay.base import Key, Replay, key_of
from agentrl.replay.readvantage.stored_scores import COLUMNS as COLUMNS_OF_SCORES
from agentrl.replay.readvantage.stored_scores import scored_samples
from agentrl.store import StoredRollout
from agentrl.store.credited import Advantages, advantages_of
from agentrl.types.rollout import Group, Rollout, Stop

COLUMNS = ("data_source", "index", "rewards", "turn_rewards", "error", "infra_failed")
COLUMNS_OF_TOKENS = ("trajectories.segments", "trajectories.advantages")

_BY_REWARD = "reward: "
"""Prefix of `Rollout.error` if the reward function failed and everything before it succeeded."""


@dataclass(frozen=True, slots=True)
class Credit:
    """A rollout's saved and recomputed advantages, shape [trained tokens]; None if the rollout is not trained on."""

    key: Key
    before: NDArray[np.float64] | None
    after: NDArray[np.float64] | None
    score_before: float | None
    score_after: float | None

    @property
    def means(self) -> tuple[float | None, float | None]:
        """Mean saved and mean recomputed advantage of the trained tokens."""
        return _mean(self.before), _mean(self.after)

    @property
    def change(self) -> float:
        """Change of the mean advantage; 0 unless the rollout has both saved and recomputed advantages."""
        before, after = self.means
        return 0.0 if before is None or after is None else after - before


def recompute_credit(replay: Replay, algorithm: BuiltAlgorithm) -> Iterator[list[Credit]]:
    """Yield for each group the saved and recomputed advantages of its rollouts.

    A step is computed as one batch, because an estimator may need all groups of a step.

    Log-probabilities and values are read from the store. The coefficient of a KL penalty in the reward is also read
    from the store, unless an override sets it.

    Raises:
        DataError: a step has no tokens or no saved advantages, contains a rollout twice, or lacks log-probabilities or
            values that the estimator needs.
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
        next(advantages, None)  # raises ValueError if a sample belongs to no trajectory


def _check(replay: Replay, step: int, groups: Sequence[Sequence[StoredRollout]]) -> None:
    rollouts = list(chain.from_iterable(groups))
    for key, count in Counter(map(key_of, rollouts)).items():
        if count > 1:
            raise DataError(f"'{replay.run.name}': step {key[0]}, rollout {key[2]} of '{key[1]:.80}' occurs twice")
    if not any(trajectory.segments for stored in rollouts for trajectory in stored.rollout.trajectories):
        raise DataError(f"'{replay.run.name}': the rollouts of step {step} have no tokens to compute advantages for")
    if all(advantages is None for stored in rollouts for advantages in stored.advantages):
        raise DataError(
            f"'{replay.run.name}': step {step} of split '{replay.run.split}' has no saved advantages:"
            " only rollouts that were trained on have advantages"
        )


def with_new_score(replay: Replay, stored: StoredRollout) -> Rollout:
    """Return the rollout with its new score if `rescore` ran before, else unchanged.

    A rollout without a new score counts as failed, so it is not trained on.
    """
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
    trained = [
        np.asarray(values)[np.asarray([0, *trajectory.loss_mask[1:]], bool)]
        for trajectory, values in zip(stored.rollout.trajectories, advantages, strict=True)
        if values is not None
    ]
    return np.concatenate(trained) if trained else None


def _mean(values: NDArray[np.float64] | None) -> float | None:
    return None if values is None else float(values.mean())
