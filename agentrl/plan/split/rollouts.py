"""Simulated rollouts of type `Attempt`, so that the rollout sources of a real run can start them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from agentrl.plan.lengths import Lengths, RolloutLengths, Turn
from agentrl.plan.split.machine import Machine, Span
from agentrl.plan.split.replica import Replica
from agentrl.rollouts.collector import Attempt
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


@dataclass(slots=True)
class Simulator:
    """Runs rollouts of `lengths` on `machine`, for one simulated run.

    Attributes:
        recompute: whether new weights invalidate the KV cache of all conversations
            (`rollout.weight_update_mode=retract`).
        share: whether training computes equal prompts of a task once.
        ended: `id` of an ended rollout -> (the rollout, kept so that Python does not reuse the `id`; its lengths).
        spent_s: seconds of all ended rollouts.
        num_started: rollouts started, restarts included.
    """

    machine: Machine
    lengths: Lengths
    group_size: int
    recompute: bool = True
    share: bool = False
    ended: dict[int, tuple[Rollout, RolloutLengths]] = field(default_factory=dict)
    spent_s: float = 0.0
    num_started: int = 0
    _shared: set[tuple[str, int, int]] = field(default_factory=set)

    def attempts(self, task: Task, priority: int) -> list[Attempt]:
        """Return the rollouts of a task, without starting them. See `rollouts.collector.attempts_at`."""
        planned = self.lengths.group(task.index, self.group_size)
        return [partial(self._run, task, lengths, priority) for lengths in planned]

    def samples(self, groups: Sequence[Group]) -> list[Sample]:
        """Return one sample for each trajectory of the groups.

        The samples contain only token positions, and the ids of groups and rollouts.
        """
        return [
            sample
            for group in groups
            for number, rollout in enumerate(group.rollouts)
            for sample in self.lengths_of(rollout).samples(f"{group.uid}/{number}", group.uid, share=self.share)
        ]

    def lengths_of(self, rollout: Rollout) -> RolloutLengths:
        """Return the lengths of a rollout that has ended."""
        return self.ended[id(rollout)][1]

    async def _run(self, task: Task, lengths: RolloutLengths, priority: int) -> Rollout:
        loop, replica = asyncio.get_running_loop(), self.machine.least_loaded()
        started, self.num_started = loop.time(), self.num_started + 1
        versions: list[int] = []
        for turn in lengths.turns:
            new = self._new_tokens(turn, lengths, task.uid, replica, versions)
            spans = await replica.generate(turn.context, new, turn.sampled, priority)
            versions += [version for version, _ in spans]
            if turn.wait_s:
                await asyncio.sleep(turn.wait_s)
        rollout = Rollout([_trajectory(versions)], Stop.FINISHED, rewards={"score": 0.0})
        self.ended[id(rollout)] = rollout, lengths
        rollout.duration_s = loop.time() - started
        self.spent_s += rollout.duration_s
        self.machine.spans.append(Span("rollouts", task.uid, started, loop.time()))
        return rollout

    def _new_tokens(
        self, turn: Turn, lengths: RolloutLengths, uid: str, replica: Replica, versions: Sequence[int]
    ) -> int:
        """Return how many tokens the replica computes for a turn.

        After new weights, `recompute` makes the replica compute the whole context. If the context is a cached prompt,
        the replica computes only one token.
        """
        if versions and versions[-1] != replica.version and self.recompute:
            return turn.context
        if turn.context == turn.new == lengths.prompt and self._known(uid, id(replica), replica.version):
            return 1
        return turn.new

    def _known(self, uid: str, replica: int, version: int) -> bool:
        """Whether another rollout of the task has computed the prompt in this replica, so that the prompt is cached."""
        key = uid, replica, version if self.recompute else 0
        known = key in self._shared
        self._shared.add(key)
        return known


def _trajectory(versions: Sequence[int]) -> Trajectory:
    """Return a trajectory with one token for each policy version that sampled the rollout."""
    distinct = sorted(set(versions))
    spans = [VersionSpan(version, 1) for version in distinct]
    return Trajectory([Segment(Author.MODEL, [0] * len(spans), [0.0] * len(spans), spans)])
