"""From groups to samples: who takes part, where the reward stands, what each token's advantage is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agentrl.algos.advantages import estimate_advantages
from agentrl.errors import ConfigError
from agentrl.samples import Sample
from agentrl.trajectory import Group, Rollout, Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """A trajectory that trains something. `reward` stands on its last trained token; the rollout's last row has it."""

    uid: str
    rollout_id: str
    trajectory: Trajectory
    mask: list[int]
    reward: float = 0.0

    def sample(self, advantages: Sequence[float]) -> Sample:
        """What the backend trains on."""
        return Sample(
            token_ids=list(self.trajectory.token_ids),
            loss_mask=self.mask,
            temperatures=self.trajectory.temperatures,
            advantages=advantages,
            behaviour_logprobs=self.trajectory.logprobs if self.trajectory.sampled else None,
            rollout_id=self.rollout_id,
            uid=self.uid,
        )


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """One row a trajectory with trained tokens, of rollouts that did not fail for reasons outside the policy."""
    return [
        row
        for group in groups
        for index, rollout in enumerate(group.rollouts)
        if rollout.valid
        for row in _rollout_rows(group.uid, f"{group.uid}/{index}", rollout)
    ]


def _rollout_rows(uid: str, rollout_id: str, rollout: Rollout) -> Iterator[Row]:
    masks = [_mask(trajectory) for trajectory in rollout.trajectories]
    trained = [number for number, mask in enumerate(masks) if any(mask)]
    for number in trained:
        reward = rollout.reward if number == trained[-1] else 0.0
        yield Row(uid, rollout_id, rollout.trajectories[number], masks[number], reward)


def _mask(trajectory: Trajectory) -> list[int]:
    # nothing predicts the first token, so it cannot be trained, whoever wrote it
    return [0, *trajectory.loss_mask[1:]]


def imitate(groups: Sequence[Group]) -> list[Sample]:
    """Every trained token has advantage 1."""
    return [row.sample([float(trained) for trained in row.mask]) for row in rows_of(groups)]


def compare(groups: Sequence[Group], estimator: str, options: Mapping[str, Any]) -> list[Sample]:
    """Advantages by `estimate_advantages` over all groups of a step; `options` are the estimator's own, of any type.

    Raises:
        ConfigError: a demonstration, which nobody sampled, so that it has no probability to compare with.
    """
    rows = rows_of(groups)
    for row in rows:
        if not row.trajectory.sampled:
            raise ConfigError(
                f"algorithm.adv_estimator '{estimator}' trains on what the policy sampled, but group '{row.uid}' holds"
                " demonstrations: use algorithm.name=sft"
            )
    if not rows:
        return []
    advantages, _ = estimate_advantages(
        estimator,
        _padded([_reward_tokens(row) for row in rows]),
        _padded([row.mask for row in rows]).bool(),
        [row.uid for row in rows],
        rollout_ids=[row.rollout_id for row in rows],
        **options,
    )
    return [row.sample(values[: len(row.mask)].tolist()) for row, values in zip(rows, advantages, strict=True)]


def _reward_tokens(row: Row) -> list[float]:
    last = max(index for index, trained in enumerate(row.mask) if trained)
    return [row.reward if index == last else 0.0 for index in range(len(row.mask))]


def _padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
