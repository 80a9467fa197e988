"""Groups of recorded rollouts. A group has a task and one slot per rollout; a slot is filled when its rollout ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from pydantic import JsonValue

from agentrl.types.messages import ToolSchema, image_names
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task

RUNNING = "not recorded: the gateway was killed before this rollout ended"
"""Error of a rollout that is still running. The error remains in the file if the gateway is killed."""
UNUSED = "not recorded: no request used the key of this rollout"


class TaskFacts(NamedTuple):
    """Data about a group's task that is known before the first request."""

    ground_truth: JsonValue = None
    data_source: str = "gateway"
    extra_info: Mapping[str, JsonValue] = {}


@dataclass(eq=False, slots=True)
class RecordedGroup:
    """The rollouts of one task.

    Attributes:
        task: the task; its prompt is known once a rollout with a conversation has ended.
        rollouts: one per slot; a rollout that is still running has an error and no conversation.
        num_open: number of rollouts that are still running.
    """

    task: Task
    rollouts: list[Rollout]
    num_open: int

    @classmethod
    def of(cls, task: Task, seeds: Sequence[int]) -> RecordedGroup:
        """Return a group with a running rollout for each seed."""
        return cls(task, [_without_conversation(RUNNING, seed) for seed in seeds], len(seeds))

    def end(self, number: int, rollout: Rollout, tools: Sequence[ToolSchema]) -> None:
        """Fill the slot `number`. The first rollout with a conversation sets the task's prompt and tools.

        The prompt is taken from the conversation with the most turns.
        """
        used = any(trajectory.num_turns for trajectory in rollout.trajectories)
        self.rollouts[number] = rollout if used else _without_conversation(UNUSED, rollout.seed)
        self.num_open -= 1
        if used and not self.task.messages:
            self.task = _with_prompt(self.task, rollout, tools)

    @property
    def used(self) -> bool:
        """Whether at least one ended rollout has a conversation."""
        return bool(self.task.messages)

    @property
    def saved(self) -> Group:
        """The group in its current state, as it is saved."""
        return Group(self.task, list(self.rollouts))


def _without_conversation(error: str, seed: int) -> Rollout:
    return Rollout([], Stop.ERROR, error=error, seed=seed)


def _with_prompt(task: Task, rollout: Rollout, tools: Sequence[ToolSchema]) -> Task:
    longest = max(rollout.trajectories, key=lambda trajectory: trajectory.num_turns)
    messages = list(takewhile(lambda message: message["role"] != "assistant", longest.messages))
    images = {name: longest.images[name] for name in image_names(messages) if name in longest.images}
    extra_info = dict(task.extra_info)
    if tools:
        extra_info["tools"] = [tool.for_template() for tool in tools]
    return replace(task, messages=messages, images=images, extra_info=extra_info)
