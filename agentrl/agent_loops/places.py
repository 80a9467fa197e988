"""Places of a rollout's trajectories. Places make the order and the seeds of trajectories independent of timing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from agentrl.agent_loops.operations import moved
from agentrl.types.rollout import Rollout
from agentrl.utils.seeds import derive_seed

Place = tuple[int, ...]
"""Place of a trajectory. (3,) is the main agent's trajectory that began when the rollout had three trajectories.
(3, 1, 0) is the first trajectory of the second sub-agent that was started in trajectory (3,). The path of an agent is
the place of its trajectories without the last number: () for the main agent, (3, 1) for this sub-agent."""


def place_of_next(places: Sequence[Place], path: Place) -> Place:
    """Return the place of the next trajectory of the agent with the path `path`."""
    return (*path, sum(place[:-1] == path for place in places) if path else len(places))


def path_of_next_agent(places: Sequence[Place], number: int) -> Place:
    """Return the path of the next sub-agent that is started in trajectory `number`."""
    parent = places[number]
    started = [place[len(parent)] for place in places if place[: len(parent)] == parent and len(place) > len(parent)]
    return (*parent, max(started, default=-1) + 1)


def stream_of(place: Place) -> int:
    """Return the number that identifies a trajectory in its sampling seeds and in the name of its engine session."""
    return place[0] if len(place) == 1 else derive_seed(*place)


def in_order(rollout: Rollout, places: Sequence[Place]) -> Rollout:
    """Put each sub-agent's trajectories before the trajectory that started the sub-agent."""
    order = sorted(range(len(places)), key=lambda number: (*places[number], math.inf))
    if order == list(range(len(places))):
        return rollout
    number_of = {old: new for new, old in enumerate(order)}
    rewards = [replace(each, trajectory=number_of[each.trajectory]) for each in rollout.turn_rewards]
    calls = [replace(each, trajectory=number_of[each.trajectory]) for each in rollout.tool_calls]
    return replace(
        rollout,
        trajectories=[rollout.trajectories[number] for number in order],
        turn_rewards=sorted(rewards, key=lambda reward: reward.trajectory),
        tool_calls=sorted(calls, key=lambda call: call.trajectory),
        operations=[moved(each, number_of) for each in rollout.operations],
    )
