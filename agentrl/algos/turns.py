"""What was said of single turns, and of a rollout by name, as the tensors that advantage estimators read.

Axes: B samples, T tokens. A turn is a run of trained tokens, so turns are counted by the samples' own loss masks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from agentrl.attempt import BASELINE, GUARD, Group, Rollout, TurnReward
from agentrl.errors import RewardError
from agentrl.samples import Sample


@dataclass(frozen=True, slots=True)
class Turns:
    """What `AdvantageBatch` has under the same names.

    Attributes:
        turn_rewards: [B, T] float32; each on the last token of its turn, added up where there are several. None where
            no rollout has any.
        step_ends: [B, T] bool, where a turn reward stands, also one of 0. None likewise: the outcome is the one step.
        observation_keys: [B][turns].
        components: name -> [B] float32, the rewards of each sample's rollout; 0 where that one has none of the name.
            Without what only watches.
    """

    turn_rewards: Tensor | None
    step_ends: Tensor | None
    observation_keys: list[list[str | None]]
    components: dict[str, Tensor]


def turn_credit(groups: Sequence[Group], samples: Sequence[Sample]) -> Turns:
    """The turn rewards, observation keys and rewards by name of `samples`, which are of `groups`.

    A turn reward belongs to the turn that its segment is, or that came before it where the segment is a tool's or a
    user's. One before every trained token of its trajectory is left out: that turn was sampled elsewhere, or by nobody.
    With the worked example of `Trajectory` and rewards 0.5 of segment 1 (the call) and 0.25 of segment 3:

        token_ids = [1 2 3 4 5 6]    turn_rewards = [0 0 0 0.5 0 0.25]    step_ends = [0 0 0 1 0 1]

    Args:
        samples: as `samples_of` gave them; rollouts may be left out, but no sample of a rollout that is there.

    Raises:
        RewardError: a turn reward has an address that its rollout does not have.
    """
    rollouts = {f"{group.uid}/{index}": each for group in groups for index, each in enumerate(group.rollouts)}
    placed = list(_placed(rollouts, samples))
    rewards, ends = _blank(samples), _blank(samples)
    turns = [_turn_numbers(sample) for sample in samples]
    keys: list[list[str | None]] = [[None] * max(numbers, default=0) for numbers in turns]
    for row, token, reward in placed:
        rewards[row, token] += reward.value
        ends[row, token] = 1
        turn = turns[row][token] - 1
        keys[row][turn] = keys[row][turn] or reward.observation_key
    components = _components([rollouts[sample.rollout_id] for sample in samples])
    return Turns(rewards if placed else None, ends.bool() if placed else None, keys, components)


def _placed(rollouts: dict[str, Rollout], samples: Sequence[Sample]) -> Iterator[tuple[int, int, TurnReward]]:
    """(row, token, reward) of every turn reward of the samples' rollouts."""
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row, sample in enumerate(samples):
        rows_of[sample.rollout_id].append(row)
    for rollout_id, rows in rows_of.items():
        rollout = rollouts[rollout_id]
        trained = [number for number, each in enumerate(rollout.trajectories) if any(each.loss_mask[1:])]
        row_of = dict(zip(trained, rows, strict=True))
        for reward in rollout.turn_rewards:
            before = _num_tokens_up_to(rollout_id, rollout, reward)
            row = row_of.get(reward.trajectory, -1)
            trained_tokens = [] if row < 0 else [t for t, each in enumerate(samples[row].loss_mask[:before]) if each]
            if trained_tokens:
                yield row, trained_tokens[-1], reward


def _num_tokens_up_to(rollout_id: str, rollout: Rollout, reward: TurnReward) -> int:
    """How many tokens its trajectory has up to the end of its segment."""
    if reward.trajectory in range(len(rollout.trajectories)):
        segments = rollout.trajectories[reward.trajectory].segments
        if reward.segment in range(len(segments)):
            return sum(map(len, segments[: reward.segment + 1]))
    raise RewardError(
        f"rollout {rollout_id}: the turn reward '{reward.name}' is of segment {reward.segment} of trajectory"
        f" {reward.trajectory}, and the rollout has no such segment"
    )


def _turn_numbers(sample: Sample) -> list[int]:
    """[T], how many turns began up to each token."""
    mask = sample.loss_mask
    return list(accumulate(now > before for before, now in zip([0, *mask], mask, strict=False)))


def _blank(samples: Sequence[Sample]) -> Tensor:
    return torch.zeros(len(samples), max((len(sample.loss_mask) for sample in samples), default=0))


def _components(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    given = dict.fromkeys(name for rollout in rollouts for name in rollout.rewards)
    names = [name for name in given if name != BASELINE and not name.startswith(GUARD)]
    return {name: torch.tensor([rollout.rewards.get(name, 0.0) for rollout in rollouts]) for name in names}
