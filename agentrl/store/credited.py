"""Which sample, and so which advantages, belong to which trajectory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from agentrl.attempt import Group
from agentrl.samples import Sample
from agentrl.trajectory import Trajectory

Advantages = Sequence[float] | None
"""One a token of a trajectory, or None where it was not trained on."""


def advantages_of(groups: Sequence[Group], samples: Sequence[Sample]) -> Iterator[list[Advantages]]:
    """For each rollout the advantages of each of its trajectories, found as by `samples_by_rollout`."""
    for found in samples_by_rollout(groups, samples):
        yield [sample.advantages if sample else None for sample in found]


def samples_by_rollout(groups: Sequence[Group], samples: Sequence[Sample]) -> Iterator[list[Sample | None]]:
    """For each rollout the sample of each of its trajectories; None where it was not trained on.

    Samples stand in the order of their trajectories and their `rollout_id` is `uid/number`, as
    `algos.credit.samples_of` makes them; any trajectory may lack one.

    Raises:
        ValueError: at the end, a sample belongs to none of the trajectories.
    """
    waiting = deque(samples)
    for group in groups:
        for number, rollout in enumerate(group.rollouts):
            rollout_id = f"{group.uid}/{number}"
            alone = len(rollout.trajectories) == 1
            yield [
                waiting.popleft() if waiting and _is_of(waiting[0], rollout_id, trajectory, alone) else None
                for trajectory in rollout.trajectories
            ]
    if waiting:
        raise ValueError(f"a sample of rollout '{waiting[0].rollout_id}' belongs to no trajectory of the groups")


def _is_of(sample: Sample, rollout_id: str, trajectory: Trajectory, alone: bool) -> bool:
    """Among several, one of the same tokens may have nothing to train and so no sample: then the mask tells."""
    return (
        sample.rollout_id == rollout_id
        and list(sample.token_ids) == trajectory.token_ids
        and (alone or list(sample.loss_mask[1:]) == trajectory.loss_mask[1:])  # the first token is never trained
    )
