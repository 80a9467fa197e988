"""Admission of groups in flight under any timing: bounds hold; no task starves, is lost or is used twice."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.data.order import Draw, TaskOrder
from agentrl.trainer.sources.admission import Admissions, num_extra

NUM_ROWS = 7


def admissions(size=2, staleness=1, over_sampling=0.0, num_steps=None, max_drawn=None) -> Admissions:
    return Admissions(TaskOrder(NUM_ROWS, 3, True).at, size, staleness, over_sampling, num_steps, max_drawn)


@dataclass
class Run:
    """A simulated run. Random choices decide which groups end, their oldest version, and whether they are filtered.

    `silent` is the share of groups that are filtered.
    """

    admissions: Admissions
    size: int
    staleness: int
    over_sampling: float = 0.0
    trained: list[Draw] = field(default_factory=list)
    step: int = 0
    silent: float = 0.0
    max_drawn: int | None = None
    filtered: list[Draw] = field(default_factory=list)

    def begin_all(self) -> None:
        while self.admissions.next is not None:
            self.admissions.begin()
        bound = (self.admissions.version + self.staleness + 1) * self.size * (1 + self.over_sampling)
        assert self.admissions.position <= math.ceil(bound + 1e-9) + len(self.filtered)

    def end_some(self, chance: random.Random, slow_rows=()) -> None:
        for ticket, begun in list(self.admissions.under_way.items()):
            if ticket.draw.row in slow_rows or chance.random() >= 0.4:
                continue
            if ticket in self.admissions.under_way and chance.random() < self.silent:
                self.admissions.filtered(ticket)
                self.filtered.append(ticket.draw)
                self.begin_all()  # the filtered group frees its room at once
            else:
                self.admissions.finished(ticket, chance.randint(begun, self.admissions.version))

    def train_a_step(self, chance: random.Random, slow_rows=()) -> None:
        """Take groups as soon as possible; a slow row ends only when the step waits for nothing else."""
        self.admissions.published(self.step)
        self.begin_all()
        for round_ in range(1000):
            if self.admissions.can_take:
                break
            self.end_some(chance, slow_rows if round_ < 50 else ())
            self.begin_all()
        versions, before = dict(self.admissions.ready), self.admissions.num_filtered
        taken = self.admissions.take()
        assert taken == sorted(taken)
        assert all(self.step - versions[ticket] <= self.staleness for ticket in taken)
        drew_enough = self.max_drawn and before + len(versions) >= self.max_drawn
        assert len(taken) == (min(self.size, len(versions)) if drew_enough else self.size)
        self.trained += [ticket.draw for ticket in taken]
        for _ in range(chance.randint(0, 3)):  # rollouts that end while the step trains
            self.begin_all()
            self.end_some(chance, slow_rows)
        self.step += 1

    def check(self) -> None:
        held = Counter(ticket for ticket in [*self.admissions.under_way, *self.admissions.ready])
        assert max(held.values(), default=1) == 1
        known = (*self.trained, *self.filtered, *self.admissions.pending)
        assert all(draw.draw <= 1 for draw in known)
        done = [draw[:2] for draw in known]
        order = TaskOrder(NUM_ROWS, 3, True)
        assert sorted(done) == sorted(order.at(place)[:2] for place in range(self.admissions.position))


SIZES = st.integers(1, 5)
STALENESS = st.integers(0, 4)
SHARES = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.5])


@given(SIZES, STALENESS, SHARES, st.randoms(use_true_random=False), st.sets(st.integers(0, NUM_ROWS - 1)))
def test_staleness_bounds_hold_and_no_task_is_lost_or_duplicated(size, staleness, over_sampling, chance, slow_rows):
    run = Run(admissions(size, staleness, over_sampling), size, staleness, over_sampling)
    for _ in range(12):
        run.train_a_step(chance, slow_rows)
        run.check()


@given(SIZES, STALENESS, SHARES, st.integers(0, 2**32), st.sampled_from([0.1, 0.5, 0.9]), st.integers(0, 3))
def test_bounds_hold_with_filtered_groups(size, staleness, over_sampling, seed, silent, batches):
    """Each drawn task is trained on, filtered or pending, once. Steps have all their groups or drew the maximum."""
    admitted = admissions(size, staleness, over_sampling, max_drawn=batches * size or None)
    run = Run(admitted, size, staleness, over_sampling, silent=silent, max_drawn=batches * size or None)
    chance = random.Random(seed)
    for _ in range(12):
        run.train_a_step(chance, {1, 4})
        run.check()


@given(SIZES, STALENESS, SHARES, st.randoms(use_true_random=False), st.integers(0, 3))
def test_a_killed_run_resumes_with_the_groups_in_flight(size, staleness, over_sampling, chance, save_every):
    run = Run(admissions(size, staleness, over_sampling), size, staleness, over_sampling)
    saved = (0, [], 0, [])
    for _ in range(6):
        for _ in range(chance.randint(1, 5)):
            run.train_a_step(chance, {1, 4})
            if save_every and run.step % save_every == 0:
                saved = (run.admissions.position, run.admissions.pending, run.step, list(run.trained))
        again = admissions(size, staleness, over_sampling)
        again.position, again.pending, step, trained = saved[0], saved[1], saved[2], list(saved[3])
        assert again.pending == saved[1]
        run = Run(again, size, staleness, over_sampling, trained, step)
        run.check()


@pytest.mark.slow
@given(SIZES, STALENESS, SHARES, st.randoms(use_true_random=False))
def test_slow_tasks_are_not_starved(size, staleness, over_sampling, chance):
    """A row that ends only when a step waits for it is still trained on within a bounded number of steps."""
    run = Run(admissions(size, staleness, over_sampling), size, staleness, over_sampling)
    slow, drawn_at, worst = {2, 5}, {}, 0
    for step in range(25):
        run.train_a_step(chance, slow)
        for draw in run.admissions.pending:
            drawn_at.setdefault(draw[:2], step)
        for draw in run.trained:
            worst = max(worst, step - drawn_at.pop(draw[:2], step))
    oldest = [25 - step for step in drawn_at.values()]
    window = staleness + 1 + math.ceil(over_sampling)
    assert max([worst, *oldest]) <= 2 * window + staleness + 1


def test_at_staleness_0_leftover_groups_are_requeued_first():
    admitted = admissions(size=2, staleness=0, over_sampling=0.5)
    admitted.published(0)
    first = [admitted.begin() for _ in range(3)]
    assert admitted.next is None
    for ticket in first[1:]:
        admitted.finished(ticket, 0)
    assert admitted.can_take
    assert admitted.take() == first[1:]
    assert (admitted.under_way, admitted.num_requeued, admitted.next) == (
        {},
        1,
        None,
    )  # no group starts under the old weights
    admitted.published(1)
    assert admitted.begin() == first[0].again()


@pytest.mark.parametrize(
    ("staleness", "over_sampling", "reasons"),
    [
        (0, 2.0, {0: "over_sampled", 2: "over_sampled"}),
        (1, 2.0, {0: "stale", 3: "over_sampled"}),
        (1, 0.0, {0: "stale"}),
    ],
)
def test_a_requeued_group_is_stale_if_it_was_slow_and_over_sampled_if_no_step_needed_it(
    staleness, over_sampling, reasons
):
    """Group 0 never ends; all others end under the version that they start under."""
    admitted = admissions(size=1, staleness=staleness, over_sampling=over_sampling)
    admitted.published(0)
    admitted.begin()
    for step in range(staleness + 1):
        admitted.published(step)
        while admitted.next:
            admitted.finished(admitted.begin(), step)
        admitted.take()
    assert {ticket.serial: reason for ticket, reason in admitted.cut_off.items()} == reasons


def test_group_aborted_at_the_draw_limit_is_not_counted_as_over_sampled():
    admitted = admissions(size=2, staleness=0, over_sampling=0.5, max_drawn=2)
    admitted.published(0)
    slow, silent, ready = [admitted.begin() for _ in range(3)]
    admitted.filtered(silent)
    admitted.finished(ready, 0)
    assert admitted.take() == [ready]
    assert admitted.cut_off == {slow: "stale"}


def test_a_step_waits_for_a_last_chance_before_it_grows_too_old():
    admitted = admissions(size=1, staleness=1)
    admitted.pending = [Draw(0, 6, 1)]
    admitted.published(0)
    slow, *others = [admitted.begin() for _ in range(2)]
    assert slow.last_chance
    admitted.finished(others[0], 0)
    assert admitted.can_take  # the slow group may still run in the next step
    assert admitted.take() == others
    admitted.published(1)
    admitted.finished(admitted.begin(), 1)
    assert not admitted.can_take
    admitted.finished(slow, 1)
    assert admitted.take() == [slow]


def test_final_restarts_per_version_are_limited_to_one_step():
    admitted = admissions(size=2, staleness=0)
    admitted.pending = [Draw(0, row, 1) for row in range(5)]
    admitted.published(0)
    assert [admitted.begin().draw.row for _ in range(2)] == [0, 1]
    assert admitted.next is None


def test_final_restarts_go_first_by_start_time():
    admitted = admissions(size=1, staleness=1)
    admitted.pending = [Draw(0, 3), Draw(0, 5), Draw(0, 6, 1), Draw(0, 4, 1)]
    admitted.published(0)
    first, young, chance = [admitted.begin() for _ in range(3)]
    admitted.finished(first, 0)
    assert admitted.take() == [first]
    admitted.published(1)
    assert admitted.begin().draw.row == 4  # its place belongs to the next step
    admitted.finished(young, 1)
    admitted.finished(chance, 1)
    assert admitted.take() == [chance]


def test_a_filtered_group_frees_room_for_another_at_once():
    admitted = admissions(size=1, staleness=0)
    admitted.published(0)
    first = admitted.begin()
    assert admitted.next is None
    admitted.filtered(first)
    assert (admitted.pending, admitted.num_filtered) == ([], 1)
    second = admitted.begin()
    assert (second.serial, second.draw, admitted.next) == (1, TaskOrder(NUM_ROWS, 3, True).at(1), None)
    admitted.finished(second, 0)
    assert admitted.take() == [second]
    assert admitted.num_filtered == 0


def test_a_step_that_drew_enough_begins_with_what_is_ready():
    admitted = admissions(size=2, staleness=0, max_drawn=2)
    admitted.published(0)
    admitted.filtered(admitted.begin())
    assert not admitted.can_take
    ready = admitted.begin()
    admitted.finished(ready, 0)
    assert admitted.can_take
    assert admitted.take() == [ready]


def test_requeued_groups_come_before_later_ones():
    admitted = admissions(size=1, staleness=0)
    admitted.pending = [Draw(0, 3), Draw(0, 5, 1), Draw(0, 6, 1)]
    admitted.published(0)
    slow, chance = admitted.begin(), admitted.begin()
    admitted.finished(chance, 0)
    assert admitted.take() == [chance]
    admitted.published(1)
    assert admitted.begin() == slow.again()


def test_no_group_starts_before_weights_are_published():
    assert admissions().next is None


@pytest.mark.parametrize("staleness", [0, 2])
def test_groups_that_no_step_would_take_are_not_started(staleness):
    admitted = admissions(size=4, staleness=staleness, over_sampling=0.25, num_steps=3)
    for step in range(3):
        admitted.published(step)
        while admitted.next is not None:
            admitted.finished(admitted.begin(), step)
        assert len(admitted.take()) == 4
    assert (admitted.position, admitted.next) == (3 * 4 + 1, None)


def test_run_resumed_with_smaller_steps_has_enough_tasks():
    admitted = admissions(size=1, staleness=1, num_steps=12)
    admitted.position, admitted.pending = 8 * 4 + 2, [Draw(4, 6), Draw(4, 3)]  # 8 steps of 4, and two in flight
    for step in range(8, 12):
        admitted.published(step)
        while admitted.next is not None:
            admitted.finished(admitted.begin(), step)
        assert len(admitted.take()) == 1
    assert (admitted.position, admitted.pending) == (8 * 4 + 4, [])


def test_a_requeued_group_may_still_end_without_effect():
    admitted = admissions(size=1, staleness=0, over_sampling=1)
    admitted.published(0)
    late, soon = admitted.begin(), admitted.begin()
    admitted.finished(soon, 0)
    admitted.take()
    admitted.finished(late, 0)
    assert admitted.ready == {}
    assert admitted.pending == [late.again().draw]


@pytest.mark.parametrize(
    ("share", "size", "extra"), [(0.1, 30, 3), (0.7, 10, 7), (0.01, 8, 1), (0.0, 8, 0), (2, 8, 16)]
)
def test_share_is_parsed_as_written(share, size, extra):
    assert num_extra(share, size) == extra
