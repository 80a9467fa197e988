"""Which tasks are in flight, which are too old and which may begin: bounded staleness without a clock or a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from agentrl.data.order import Draw


@dataclass(frozen=True, order=True, slots=True)
class Ticket:
    """A task that was admitted, by its place in the order of admission; begun again it keeps its place."""

    serial: int
    draw: Draw

    @property
    def last_chance(self) -> bool:
        """Whether it was cut off before: now a step waits for it."""
        return self.draw.draw > 0

    def again(self) -> Ticket:
        """The same task as a further drawing of its row, so that its seeds are others."""
        return Ticket(self.serial, self.draw._replace(draw=self.draw.draw + 1))


class Admissions:
    """The books of groups that are rolled out while training goes on. G groups a step, staleness at most S.

    A task is waiting, then under way, then ready, then taken. Counted from the run's beginning, where the weights of
    `version` are the last published,

        tasks admitted <= ceil((version + S + 1 + over_sampling) x G) + tasks filtered

    where a group that came to its end and teaches nothing is filtered: another takes its place (dynamic sampling).

    What can no longer be taken, since the next step would find it older than S, is cut off and waits again, before
    every task that was never begun: dropping it would starve long tasks. The second time it has its last chance: a
    step waits for it before it would grow too old. At most G begin theirs under one version, so that a step has room
    for all that it must wait for; the others wait for the next version. So no task is cut off twice.

    Args:
        draw_at: what is drawn from the data at a position.
        over_sampling: tasks admitted beyond that, as a share of G.
        num_steps: steps of the whole run: what no step would take is not drawn. None for no end.
        max_drawn: groups, filtered or ready, with which a step goes on with those that are ready. None waits for G.

    Attributes:
        version: the last published; -1 before the first.
        position: how many tasks were drawn from the data.
        under_way: with the version when they began: nothing older samples them.
        ready: with the oldest version that sampled any of them.
        num_requeued: how often a task was cut off.
        num_filtered: how many tasks were filtered since a step was taken.
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
        self.num_filtered = 0
        self._draw_at = draw_at
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._num_extra = num_extra(over_sampling, groups_per_step)
        self._num_steps = num_steps
        self._max_drawn = max_drawn
        self._waiting: list[Ticket] = []
        self._num_admitted = 0
        self._in_training = False  # groups of a step

    @property
    def pending(self) -> list[Draw]:
        """What was drawn from the data and not taken, in the order of admission."""
        return [ticket.draw for ticket in sorted([*self._waiting, *self.under_way, *self.ready])]

    @pending.setter
    def pending(self, draws: Sequence[Draw]) -> None:
        self._waiting = [Ticket(serial, Draw(*draw)) for serial, draw in enumerate(draws)]
        self._num_admitted = len(draws)

    @property
    def next(self) -> Ticket | None:
        """The task that may begin now, if there is one."""
        if self.version < 0 or self._num_steps_ahead <= 0:
            return None  # it would be too old before it could be taken, or no step follows
        for ticket in self._waiting:
            if not ticket.last_chance or self._num_last_chances < self._groups_per_step:
                return ticket
        if self._num_open >= self._num_steps_ahead * self._groups_per_step + self._num_extra:
            return None
        return Ticket(self._num_admitted, self._draw_at(self.position))

    def begin(self) -> Ticket:
        """Have `next` under way."""
        ticket = self.next
        assert ticket is not None  # asked before
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        else:
            self.position += 1
            self._num_admitted += 1
        self.under_way[ticket] = self.version
        return ticket

    def finished(self, ticket: Ticket, oldest_version: int) -> None:
        """It is rolled out, the oldest of its tokens sampled by that version. One that was cut off is not looked at."""
        if (begun := self.under_way.pop(ticket, None)) is not None:
            # the room that a step keeps for last chances is counted by when they began
            self.ready[ticket] = min(begun, oldest_version) if ticket.last_chance else oldest_version
            self._cut_off()

    def filtered(self, ticket: Ticket) -> None:
        """It is rolled out and teaches nothing: no step takes it. One that was cut off is not looked at."""
        if self.under_way.pop(ticket, None) is not None:
            self.num_filtered += 1

    def published(self, version: int) -> None:
        """The step that was under way is done; its weights sample from now on."""
        self.version, self._in_training = version, False

    @property
    def can_take(self) -> bool:
        """Whether the next step can begin."""
        if any(ticket.last_chance and self._is_due(begun) for ticket, begun in self.under_way.items()):
            return False
        return len(self.ready) >= self._groups_per_step or self._drew_enough

    def take(self) -> list[Ticket]:
        """The tasks of the next step, oldest first, where it can begin; what is then too old is cut off.

        G of them; fewer, or none, only where `max_drawn` are drawn.
        """
        due = [ticket for ticket, version in self.ready.items() if ticket.last_chance and self._is_due(version)]
        others = sorted(self.ready.keys() - due)
        taken = sorted([*due, *others][: self._groups_per_step])
        for ticket in taken:
            del self.ready[ticket]
        self._in_training, self.num_filtered = True, 0
        self._cut_off()
        return taken

    @property
    def _drew_enough(self) -> bool:
        return self._max_drawn is not None and self.num_filtered + len(self.ready) >= self._max_drawn

    @property
    def _num_open(self) -> int:
        return len(self._waiting) + len(self.under_way) + len(self.ready)

    @property
    def _num_steps_ahead(self) -> int:
        """How many steps may still take what begins now."""
        end = self.version + self._max_staleness + 1
        return (end if self._num_steps is None else min(end, self._num_steps)) - self._next_take

    @property
    def _num_last_chances(self) -> int:
        """How many last chances began under this version."""
        begun = [*self.under_way.items(), *self.ready.items()]
        return sum(ticket.last_chance and version == self.version for ticket, version in begun)

    @property
    def _next_take(self) -> int:
        """The version at which groups are taken next."""
        return self.version + self._in_training

    def _is_due(self, version: int) -> bool:
        return version <= self.version - self._max_staleness

    def _cut_off(self) -> None:
        for held in (self.under_way, self.ready):
            for ticket in [each for each, version in held.items() if self._next_take - version > self._max_staleness]:
                del held[ticket]
                self._waiting.append(ticket.again())
                self.num_requeued += 1
        self._waiting.sort()


def num_extra(over_sampling: float, groups_per_step: int) -> int:
    """Groups begun beyond what a step takes: 0.1 of 30 are 3."""
    return math.ceil(Fraction(repr(over_sampling)) * groups_per_step)  # as it was written: 0.1 is a tenth
