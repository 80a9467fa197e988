"""Samples for a reward model: which tokens it is read at, and what it is to say there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from agentrl.algos.credit import valid_rollouts
from agentrl.attempt import Group, Rollout
from agentrl.errors import DataError
from agentrl.samples import Sample


def reading(token_ids: Sequence[int], labels: Mapping[int, float], uid: str = "", rollout_id: str = "") -> Sample:
    """A conversation that a model of one number a token is read in, each time when the first N tokens were seen.

    The number for a token is read before it, so what marks a place is the token after it; behind the last place the
    tokens are left out, and one stands there that is never seen. Of [5 6 7 8 9] with labels {2: 1.0, 4: 0.5}:

        token_ids = [5 6 7 8 8]    loss_mask = [0 0 1 0 1]    returns = [0 0 1 0 0.5]

    Args:
        labels: N, at least 1 -> what is to be said there.
    """
    end = max(labels)
    return Sample(
        token_ids=[*token_ids[:end], token_ids[end - 1]],
        loss_mask=[int(place in labels) for place in range(end + 1)],
        temperatures=[1.0] * (end + 1),
        advantages=[0.0] * (end + 1),
        returns=[labels.get(place, 0.0) for place in range(end + 1)],
        uid=uid,
        rollout_id=rollout_id,
    )


def read_ends(groups: Sequence[Group], outcome: str, loss: Literal["bce", "mse"] | None = None) -> list[Sample]:
    """One sample a rollout that counts: its last trajectory, read at the end.

    Args:
        outcome: the reward, by its name, that is the label.
        loss: what the label must be fit for.

    Raises:
        DataError: a rollout has no such reward, or one that the loss does not take; names group and rollout.
    """
    return [
        reading(
            ids := rollout.trajectories[-1].token_ids,
            {len(ids): _checked(_outcome(rollout, outcome, where), loss, where)},
            group.uid,
            where,
        )
        for group, where, rollout in _rollouts(groups)
    ]


def read_turns(groups: Sequence[Group], name: str | None, loss: Literal["bce", "mse"]) -> list[Sample]:
    """One sample a trajectory with labelled turns, read at the end of each of those.

    Args:
        name: of the turn rewards that are labels; None: the sum of all that a turn has.

    Raises:
        DataError: no turn has such a reward, or one has a label that the loss does not take.
    """
    samples = [
        reading(trajectory.token_ids, labels, group.uid, where)
        for group, where, rollout in _rollouts(groups)
        for number, trajectory in enumerate(rollout.trajectories)
        if (labels := _labels_of_turns(rollout, number, name, loss, where))
    ]
    if groups and not samples:
        what = "turn rewards" if name is None else f"turn rewards called '{name}'"
        raise DataError(f"none of these rollouts has {what}, so no turn has a label (algorithm.reward_training.step)")
    return samples


def _labels_of_turns(
    rollout: Rollout, number: int, name: str | None, loss: Literal["bce", "mse"], where: str
) -> dict[int, float]:
    """Tokens seen at the end of a turn -> its label."""
    sums: dict[int, float] = {}
    for reward in rollout.turn_rewards:
        if reward.trajectory == number and name in (None, reward.name):
            sums[reward.segment] = sums.get(reward.segment, 0.0) + reward.value
    segments = rollout.trajectories[number].segments
    return {
        sum(map(len, segments[: segment + 1])): _checked(label, loss, where) for segment, label in sorted(sums.items())
    }


def _rollouts(groups: Sequence[Group]) -> Iterator[tuple[Group, str, Rollout]]:
    for group in groups:
        for rollout_id, rollout in valid_rollouts(group):
            yield group, rollout_id, rollout


def _outcome(rollout: Rollout, name: str, where: str) -> float:
    if name not in rollout.rewards:
        known = ", ".join(sorted(rollout.rewards)) or "none"
        raise DataError(f"rollout {where} has no reward '{name}' (algorithm.reward_training.outcome); it has {known}")
    return rollout.rewards[name]


def _checked(label: float, loss: Literal["bce", "mse"] | None, where: str) -> float:
    if loss == "bce" and not 0 <= label <= 1:
        raise DataError(
            f"rollout {where}: the label {label:g} is no probability: algorithm.reward_training.loss=mse takes any"
        )
    return label
