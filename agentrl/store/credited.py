"""Find the sample, and so the advantages, of each trajectory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from agentrl.types.rollout import Group
from agentrl.types.sample import Sample
from agentrl.types.trajectory import Trajectory

Advantages = Sequence[float] | None
"""One advantage per token of a trajectory; None if the trajectory was not trained on."""


def advantages_of(groups: Sequence[Group], samples: Sequence[Sample]) -> Iterator[list[Advantages]]:
    """Yield for each rollout the advantages of each of its trajectories, matched by `samples_by_rollout`."""
    for found in samples_by_rollout(groups, samples):
        yield [sample.advantages if sample else None for sample in found]


def samples_by_rollout(groups: Sequence[Group], samples: Sequence[Sample]) -> Iterator[list[Sample | None]]:
    """Yield for each rollout the sample of each of its trajectories; None if a trajectory was not trained on.

    Samples must be in the order of the trajectories, with the `rollout_id` `uid/number`. `algos.credit.samples_of`
    creates samples in this order. A trajectory may have no sample.

    Raises:
        ValueError: a sample belongs to none of the trajectories; raised after the last rollout.
    """
    waiting = deque(samples)
    for group in groups:
        for number, rollout in enumerate(group.rollouts):
            rollout_id = f"{group.uid}/{number}"
            is_only = len(rollout.trajectories) == 1
            yield [
                waiting.popleft() if waiting and _belongs_to(waiting[0], rollout_id, trajectory, is_only) else None
                for trajectory in rollout.trajectories
            ]
    if waiting:
        raise ValueError(f"a sample of rollout '{waiting[0].rollout_id}' belongs to no trajectory of the groups")


def _belongs_to(sample: Sample, rollout_id: str, trajectory: Trajectory, is_only: bool) -> bool:
    """Whether `sample` was made from `trajectory`.

    If a rollout has several trajectories, the loss masks are compared too. Two trajectories may have the same tokens,
    and one of these trajectories may have no sample, because none of its tokens is trained on.
    """
    return (
        sample.rollout_id == rollout_id
        and list(sample.token_ids) == trajectory.token_ids
        and (is_only or list(sample.loss_mask[1:]) == trajectory.loss_mask[1:])  # the first token is never trained
    )
