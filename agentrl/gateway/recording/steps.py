"""Files of recorded rollouts. A file has the groups of one step, and is rewritten when one of the groups changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.gateway.recording.groups import RecordedGroup
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample


@dataclass(eq=False, slots=True)
class _Step:
    """The groups of one step, which are saved in one file.

    Attributes:
        earlier: groups that an earlier process saved.
        groups: groups of this process, in the order in which their first rollouts ended.
        num_changes: number of changes so far; the file has the first `num_saved` of them.
    """

    number: int
    earlier: Sequence[Group] = ()
    groups: list[RecordedGroup] = field(default_factory=list)
    num_changes: int = 0
    num_saved: int = 0
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def size(self) -> int:
        return len(self.earlier) + len(self.groups)

    @property
    def num_open(self) -> int:
        return sum(group.num_open for group in self.groups)


class StepFiles:
    """Saves groups of rollouts in a store, `groups_per_step` in each step.

    A group is saved when its first rollout with a conversation ends, and again each time another of its rollouts ends.
    The files are valid at every moment. Groups are kept in memory until their step is full and all rollouts of the step
    have ended.

    Args:
        store: may contain steps of an earlier process; the last step is continued if it is not full.
        samples_of: function that returns the samples of a step's groups, with advantages.
    """

    def __init__(
        self, store: TrajectoryStore, groups_per_step: int, samples_of: Callable[[Sequence[Group]], Sequence[Sample]]
    ) -> None:
        self._store = store
        self._samples_of = samples_of
        self._groups_per_step = groups_per_step
        self._newest = self._first()
        self._step_of: dict[RecordedGroup, _Step] = {}

    @property
    def next_index(self) -> int:
        """The next task index: one more than the largest index in the saved files."""
        return max((stored.task.index for stored in self._store.scan(columns=["index"])), default=-1) + 1

    @property
    def num_kept(self) -> int:
        """Number of groups in memory."""
        return len(self._step_of)

    async def save(self, group: RecordedGroup) -> Path:
        """Write the file of the group's step; return its path once the file is on disk.

        Raises:
            OSError: the file cannot be written; the next call for this step writes the group too.
            DataError: a value cannot be saved.
        """
        step = self._step_of.get(group) or self._add(group)
        step.num_changes += 1
        change = step.num_changes
        async with step.writing:
            if step.num_saved < change:  # otherwise a concurrent call has written the change
                await self._write(step)
        return self._store.file(step.number)

    async def _write(self, step: _Step) -> None:
        including, groups = step.num_changes, [*step.earlier, *(group.saved for group in step.groups)]
        await asyncio.to_thread(self._written, step.number, groups)
        step.num_saved = including
        if step.size >= self._groups_per_step and not step.num_open and step.num_saved == step.num_changes:
            for group in step.groups:
                self._step_of.pop(group, None)

    def _written(self, number: int, groups: Sequence[Group]) -> None:
        self._store.write(number, groups, self._samples_of(groups))

    def _add(self, group: RecordedGroup) -> _Step:
        if self._newest.size >= self._groups_per_step:
            self._newest = _Step(self._newest.number + 1)
        self._newest.groups.append(group)
        self._step_of[group] = self._newest
        return self._newest

    def _first(self) -> _Step:
        """Return the step to which the next group is added."""
        if not (steps := self._store.steps):
            return _Step(1)
        groups = self._store.groups(steps[-1])
        full = len(groups) >= self._groups_per_step
        return _Step(steps[-1] + 1) if full else _Step(steps[-1], groups)
