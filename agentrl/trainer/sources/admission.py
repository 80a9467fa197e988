"""Admission of tasks with bounded staleness: which tasks may start, and which are too old. Uses no asyncio."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from agentrl.data.order import Draw
from agentrl.types.excluded import Excluded


@dataclass(frozen=True, order=True, slots=True)
class Ticket:
    """An admitted task and its position in the order of admission. Requeuing (see `Admissions`) keeps the position."""

    serial: int
    draw: Draw

    @property
    def last_chance(self) -> bool:
        """Whether the task was requeued before. A step waits for such a task instead of requeuing it again."""
        return self.draw.draw > 0

    def again(self) -> Ticket:
        """Return the same task as another draw of its row, so that its rollouts have new seeds."""
        return Ticket(self.serial, self.draw._replace(draw=self.draw.draw + 1))


class Admissions:
    """State of all groups that are rolled out during training, with G groups per step and staleness at most S.

    A task is waiting, then under way, then ready, then taken. `version` is the last published policy version. The
    numbers of tasks admitted and filtered since the start of the run always satisfy:

        tasks admitted <= ceil((version + S + 1 + over_sampling) x G) + tasks filtered

    A finished group without a learning signal is filtered, and another group replaces it (dynamic sampling).

    A group that would be older than S at the next step is stopped. Its task is requeued ahead of all tasks that never
    started. If stopped tasks were dropped, long tasks would never be trained on. A requeued task has one last chance: a
    step waits until the task's group is ready. A step takes G groups, so at most G requeued tasks start under one
    version: one step can then take all their groups. Further requeued tasks wait for the next version. So no task is
    requeued twice.

    Args:
        draw_at: returns the task that is drawn at a position of the data (`Draw`).
        over_sampling: additional admitted tasks, as a share of G.
        num_steps: steps of the run; tasks that no step would take are not drawn. None: unlimited.
        max_drawn: if this many groups are filtered or ready, a step uses the ready groups, even if they are fewer than
            G. None: a step always waits for G groups.

    Attributes:
        version: the last published version; -1 before the first.
        position: number of tasks drawn from the data.
        under_way: started task -> the version at its start.
        ready: finished task -> the oldest version that sampled any of its tokens.
        num_requeued: number of requeued tasks.
        cut_off: task requeued since the caller last cleared this mapping -> the reason (see `_cut_off`).
        num_filtered: number of tasks filtered since the last call of `take`.
    """

    def __init__(
        self,
        draw_at: Callable[[int], Draw],
        groups_per_step: int,
        max_staleness: int,
        over_sampling: float = 0.0,
        num_steps: int | None = None,
        max_drawn: int | None = None,
    ) -> None:
        self.version = -1
        self.position = 0
        self.under_way: dict[Ticket, int] = {}
        self.ready: dict[Ticket, int] = {}
        self.num_requeued = 0
        self.cut_off: dict[Ticket, Excluded] = {}
        self.num_filtered = 0
        self._draw_at = draw_at
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._num_extra = num_extra(over_sampling, groups_per_step)
        self._num_steps = num_steps
        self._max_drawn = max_drawn
        self._waiting: list[Ticket] = []
        self._num_admitted = 0
        self._in_training = False  # whether the groups of a step are being trained on

    @property
    def pending(self) -> list[Draw]:
        """Drawn tasks that no step has taken yet, in the order of admission."""
        return [ticket.draw for ticket in sorted([*self._waiting, *self.under_way, *self.ready])]

    @pending.setter
    def pending(self, draws: Sequence[Draw]) -> None:
        self._waiting = [Ticket(serial, Draw(*draw)) for serial, draw in enumerate(draws)]
        self._num_admitted = len(draws)

    @property
    def next(self) -> Ticket | None:
        """The task that may start now; None if there is none."""
        if self.version < 0 or self._num_steps_ahead <= 0:
            return None  # before the first version, or no step could use the group
        for ticket in self._waiting:
            if not ticket.last_chance or self._num_last_chances < self._groups_per_step:
                return ticket
        if self._num_open >= self._num_steps_ahead * self._groups_per_step + self._num_extra:
            return None
        return Ticket(self._num_admitted, self._draw_at(self.position))

    def begin(self) -> Ticket:
        """Mark the task `next` as under way and return it."""
        ticket = self.next
        assert ticket is not None  # callers check that `next` is not None
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        else:
            self.position += 1
            self._num_admitted += 1
        self.under_way[ticket] = self.version
        return ticket

    def finished(self, ticket: Ticket, oldest_version: int) -> None:
        """Mark the task as ready; do nothing if the task was requeued while it was under way.

        Args:
            oldest_version: the oldest version that sampled any token of the task's group.
        """
        if (start_version := self.under_way.pop(ticket, None)) is not None:
            # `_num_last_chances` counts a requeued task by its start version, so no newer version is stored
            self.ready[ticket] = min(start_version, oldest_version) if ticket.last_chance else oldest_version
            self._cut_off()

    def filtered(self, ticket: Ticket) -> None:
        """Count a finished task without a learning signal as filtered; do nothing if it was requeued meanwhile."""
        if self.under_way.pop(ticket, None) is not None:
            self.num_filtered += 1

    def published(self, version: int) -> None:
        """Record a new policy version: the step is done, and the engine samples with the new weights from now on."""
        self.version, self._in_training = version, False

    @property
    def can_take(self) -> bool:
        """Whether the next step can start."""
        if any(ticket.last_chance and self._is_due(version) for ticket, version in self.under_way.items()):
            return False
        return len(self.ready) >= self._groups_per_step or self._drew_enough

    def take(self) -> list[Ticket]:
        """Return the tasks of the next step, oldest first, and requeue tasks that become too old. See `can_take`.

        Returns G tasks; fewer or none only if `max_drawn` groups were drawn.
        """
        due = [ticket for ticket, version in self.ready.items() if ticket.last_chance and self._is_due(version)]
        others = sorted(self.ready.keys() - due)
        taken = sorted([*due, *others][: self._groups_per_step])
        for ticket in taken:
            del self.ready[ticket]
        self._in_training, self.num_filtered = True, 0
        self._cut_off(surplus=self._num_extra > 0 and len(taken) == self._groups_per_step)
        return taken

    @property
    def _drew_enough(self) -> bool:
        return self._max_drawn is not None and self.num_filtered + len(self.ready) >= self._max_drawn

    @property
    def _num_open(self) -> int:
        return len(self._waiting) + len(self.under_way) + len(self.ready)

    @property
    def _num_steps_ahead(self) -> int:
        """Number of steps that may still use a group started now."""
        end = self.version + self._max_staleness + 1
        return (end if self._num_steps is None else min(end, self._num_steps)) - self._next_take

    @property
    def _num_last_chances(self) -> int:
        """Number of requeued tasks, under way or ready, that started under the current version."""
        started = [*self.under_way.items(), *self.ready.items()]
        return sum(ticket.last_chance and version == self.version for ticket, version in started)

    @property
    def _next_take(self) -> int:
        """The version at which the next groups are taken."""
        return self.version + self._in_training

    def _is_due(self, version: int) -> bool:
        return version <= self.version - self._max_staleness

    def _cut_off(self, surplus: bool = False) -> None:
        """Requeue the tasks that became too old.

        If `surplus` is true, the reason is `over_sampled` for ready groups, and for all groups if S is 0. In all other
        cases, the reason is `stale`.

        Args:
            surplus: whether over-sampling started more groups than the step took.
        """
        for held in (self.under_way, self.ready):
            for ticket in [each for each, version in held.items() if self._next_take - version > self._max_staleness]:
                del held[ticket]
                self._waiting.append(ticket.again())
                over_sampled = surplus and (held is self.ready or self._max_staleness == 0)
                self.cut_off[ticket] = Excluded.OVER_SAMPLED if over_sampled else Excluded.STALE
                self.num_requeued += 1
        self._waiting.sort()


def num_extra(over_sampling: float, groups_per_step: int) -> int:
    """Return the number of groups started beyond the size of a step. For 0.1 and 30 groups per step: 3."""
    return math.ceil(Fraction(repr(over_sampling)) * groups_per_step)  # a Fraction is exact: 0.1 is 1/10
