"""Samples for a reward model: the tokens at which its score is read, and the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from agentrl.algos.credit import valid_rollouts
from agentrl.errors import DataError
from agentrl.types.rollout import Group, Rollout
from agentrl.types.sample import Sample


def reading(token_ids: Sequence[int], labels: Mapping[int, float], uid: str = "", rollout_id: str = "") -> Sample:
    """Make one sample whose score is read at several places: after the first N tokens, for each N in `labels`.

    The model's output for index N depends only on the tokens before index N, so it is the score of the first N tokens.
    Tokens after the last N are cut. One filler token, which the model never reads, is appended. Example: [5 6 7 8 9]
    with labels {2: 1.0, 4: 0.5}:

        token_ids = [5 6 7 8 8]    loss_mask = [0 0 1 0 1]    returns = [0 0 1 0 0.5]

    Args:
        labels: N (at least 1) -> label of the first N tokens.
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
    """Make one sample per valid rollout, from its last trajectory. The model's score is read after the last token.

    Args:
        outcome: name of the reward that is the label.
        loss: the loss for which the labels must be valid; None: labels are not checked.

    Raises:
        DataError: a rollout has no such reward, or the reward is not valid for the loss. The message names the rollout.
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
    """Make one sample per trajectory with labelled turns. The score is read at the end of each labelled turn.

    Args:
        name: name of the turn rewards that are labels; None: the sum of all rewards of a turn.

    Raises:
        DataError: no turn has such a reward, or a label is not valid for the loss.
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
    """Return (number of tokens up to the end of a labelled turn) -> (label of the turn)."""
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
            f"rollout {where}: the label {label:g} is not a probability: set"
            " algorithm.reward_training.loss=mse, which accepts any number"
        )
    return label
