"""Asynchronous source: rolls out during training with bounded staleness. A step need not wait for slow groups."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from agentrl.data.order import Draw
from agentrl.rollouts.collector import Attempt, refuse_all_failed, side_by_side
from agentrl.telemetry.timing import Timer
from agentrl.trainer.protocols import Metrics
from agentrl.trainer.sources.admission import Admissions, Ticket
from agentrl.trainer.sources.exclusions import Drop, ignore
from agentrl.trainer.sources.staleness_metrics import IdleTime, staleness_metrics
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.trainer.sources.dynamic_sampling import GroupFilter  # this import loads torch


class StreamingSource:
    """Keeps groups in flight between steps; `admissions` limits their number and age.

    Args:
        admissions: decides which tasks start, which are requeued, and which form a step.
        task_of: returns the task of a draw.
        attempts: creates the rollouts of a task; the second argument is their priority in the engine. Older tasks get a
            higher priority, because a step takes the oldest groups.
        slots: limits concurrent rollouts.
        max_concurrent: number of slots. A group starts only when a slot is free, because its staleness counts from
            its start.
        max_staleness: the staleness limit of `admissions`.
        group_of: builds a group from the rollouts of a task.
        group_filter: rejects groups; a rejected group is replaced immediately. None: all groups pass.
        drop: records the group of a requeued task; its unfinished rollouts have the stop reason `aborted`.
        num_rollouts: number of rollouts in a group. Attempts beyond this number, such as ReMax's greedy rollout, are
            not passed to `drop`. None: all attempts are rollouts of the group.
    """

    live = True

    def __init__(
        self,
        admissions: Admissions,
        task_of: Callable[[Draw], Task],
        attempts: Callable[[Task, int], Sequence[Attempt]],
        slots: asyncio.Semaphore,
        max_concurrent: int,
        max_staleness: int,
        timer: Timer,
        group_of: Callable[[Task, list[Rollout]], Group] = Group,
        group_filter: GroupFilter | None = None,
        drop: Drop = ignore,
        num_rollouts: int | None = None,
    ) -> None:
        self._admissions = admissions
        self._task_of = task_of
        self._attempts = attempts
        self._slots = slots
        self._max_concurrent = max_concurrent
        self._max_staleness = max_staleness
        self._timer = timer
        self._group_of = group_of
        self._filter = group_filter
        self._drop = drop
        self._num_rollouts = num_rollouts
        self._running: dict[Ticket, asyncio.Task[None]] = {}
        self._unfinished = Counter[Ticket]()  # unfinished rollouts of each task
        self._so_far: dict[Ticket, list[Rollout]] = {}
        self._groups: dict[Ticket, Group] = {}
        self._changed = asyncio.Event()
        self._idle = IdleTime()
        self._metrics: Metrics = {}
        self._num_requeued = 0  # `admissions.num_requeued` at the last `take`

    @property
    def position(self) -> int:
        """Number of tasks drawn from the data."""
        return self._admissions.position

    @position.setter
    def position(self, position: int) -> None:
        self._admissions.position = position

    @property
    def pending(self) -> Sequence[Draw]:
        """Drawn tasks that no step has taken yet."""
        return self._admissions.pending

    @pending.setter
    def pending(self, draws: Sequence[Draw]) -> None:
        self._admissions.pending = list(draws)

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """Roll out in the background from the first `take` on; at the end, cancel all rollouts in flight."""
        self._idle.take()  # so that validation before the first step does not count as idle time
        self._feeder = asyncio.create_task(self._feed())
        self._feeder.add_done_callback(lambda _: self._update())
        try:
            yield
        finally:
            self._feeder.cancel()
            await asyncio.wait([self._feeder])
            failure = self._failure()
        if failure:
            raise failure

    async def take(self, policy_version: int) -> list[Group]:
        """Return the groups of a step, sampled with `policy_version` and with up to `max_staleness` earlier versions.

        Raises:
            AllFailedError: every rollout of these groups ended with an error.
            NothingToLearnError: no group passed the filter.
            Exception: an error raised by a rollout of any group in flight.
        """
        self.published(policy_version)
        with self._timer.timed("wait_rollouts"):
            await self._until(lambda: self._feeder.done() or self._admissions.can_take)
        if failure := self._failure():
            raise failure
        groups = [self._groups.pop(ticket) for ticket in self._admissions.take()]
        self._update()
        sampling = self._filter.end_step(len(groups)) if self._filter else {}
        self._metrics = {**self._measured(groups, policy_version), **sampling}
        refuse_all_failed(groups)
        return groups

    def published(self, version: int) -> None:
        """Start groups under the new version from now on."""
        self._admissions.published(version)
        self._update()

    def metrics(self) -> Metrics:
        """Return metrics `staleness/...` of the last step: ages, requeued groups, groups in flight, engine idle time.

        With a filter, return `sampling/...` as well.
        """
        return self._metrics

    async def _feed(self) -> None:
        """Start groups when `admissions` allows it, until this task is cancelled or a rollout raises an error."""
        try:
            async with asyncio.TaskGroup() as together:
                while True:
                    await self._until(self._may_begin)
                    ticket = self._admissions.begin()
                    attempts = self._attempts(self._task_of(ticket.draw), -ticket.serial)
                    self._unfinished[ticket] = len(attempts)
                    self._so_far[ticket] = [Rollout([], Stop.ABORTED) for _ in attempts]
                    self._running[ticket] = together.create_task(self._roll_out(ticket, attempts))
                    self._update()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def _may_begin(self) -> bool:
        return self._unfinished.total() < self._max_concurrent and self._admissions.next is not None

    async def _roll_out(self, ticket: Ticket, attempts: Sequence[Attempt]) -> None:
        counted = [partial(self._counted, ticket, number, attempt) for number, attempt in enumerate(attempts)]
        group = self._group_of(self._task_of(ticket.draw), await side_by_side(counted, self._slots))
        if ticket in self._admissions.under_way:  # otherwise the task was just requeued
            self._finished(ticket, group)
        self._update()

    def _finished(self, ticket: Ticket, group: Group) -> None:
        if self._filter and not self._filter.passes(group):
            self._admissions.filtered(ticket)
            return
        self._groups[ticket] = group
        self._admissions.finished(ticket, self._admissions.version - group.staleness(self._admissions.version))

    async def _counted(self, ticket: Ticket, number: int, attempt: Attempt) -> Rollout:
        rollout = await attempt()
        if ticket in self._unfinished:  # otherwise the task was just requeued
            self._unfinished[ticket] -= 1
            self._so_far[ticket][number] = rollout
            self._update()
        return rollout

    def _update(self) -> None:
        """Handle a change: cancel groups that `admissions` no longer tracks, and wake all waiters."""
        self._drop_requeued()
        for ticket in self._running.keys() - self._admissions.under_way.keys():
            self._running.pop(ticket).cancel()  # cancelling a finished group has no effect
            del self._unfinished[ticket], self._so_far[ticket]
        _keep_only(self._groups, self._admissions.ready)
        self._idle.set(not self._running)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _drop_requeued(self) -> None:
        for ticket, reason in self._admissions.cut_off.items():
            group = self._groups.get(ticket) or Group(
                self._task_of(ticket.draw), self._so_far.get(ticket, [])[: self._num_rollouts]
            )
            self._drop(group, [reason] * len(group.rollouts))
        self._admissions.cut_off.clear()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _failure(self) -> BaseException | None:
        ended = self._feeder.done() and not self._feeder.cancelled()
        return self._feeder.exception() if ended else None

    def _measured(self, groups: Sequence[Group], policy_version: int) -> Metrics:
        requeued, self._num_requeued = self._admissions.num_requeued - self._num_requeued, self._admissions.num_requeued
        idle_s, all_s = self._idle.take()
        return {
            **staleness_metrics(groups, policy_version, self._max_staleness),
            "staleness/requeued": float(requeued),
            "staleness/requeued_share": requeued / max(1, len(groups)),
            "staleness/in_flight": float(len(self._admissions.under_way)),
            "staleness/engine_idle_s": idle_s,
            "staleness/engine_idle": idle_s / all_s if all_s else 0.0,
        }


def _keep_only(groups: dict[Ticket, Group], tickets: Iterable[Ticket]) -> None:
    for ticket in groups.keys() - set(tickets):
        del groups[ticket]
