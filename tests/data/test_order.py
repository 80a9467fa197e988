"""The order of rows: complete, seeded, and the same after a resume at any position."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.data.order import Draw, TaskOrder, WeightedOrder, task_order
from agentrl.errors import DataError

ORDERS = {"num_rows": st.integers(1, 40), "seed": st.integers(0, 2**63 - 1), "shuffle": st.booleans()}


@given(epoch=st.integers(0, 5), **ORDERS)
def test_every_row_once_an_epoch(num_rows, seed, shuffle, epoch):
    order = TaskOrder(num_rows, seed, shuffle)
    draws = [order.at(position) for position in range(epoch * num_rows, (epoch + 1) * num_rows)]
    assert {draw.epoch for draw in draws} == {epoch}
    assert sorted(draw.row for draw in draws) == list(range(num_rows))


@given(size=st.integers(1, 50), resumed_at=st.integers(0, 6), **ORDERS)
def test_resumed_at_any_position_the_order_is_the_same(num_rows, seed, shuffle, size, resumed_at):
    uninterrupted = TaskOrder(num_rows, seed, shuffle)
    whole = [draw for step in range(8) for draw in uninterrupted.batch(step, size)]
    resumed = TaskOrder(num_rows, seed, shuffle)
    assert [draw for step in range(resumed_at, 8) for draw in resumed.batch(step, size)] == whole[resumed_at * size :]
    assert [resumed.at(position) for position in range(len(whole))] == whole


def test_order_in_file_without_shuffling():
    assert TaskOrder(3, seed=0, shuffle=False).batch(1, 2) == [Draw(0, 2), Draw(1, 0)]


def test_epochs_and_seeds_have_orders_of_their_own():
    def rows(seed, epoch):
        return tuple(draw.row for draw in TaskOrder(20, seed, shuffle=True).batch(epoch, 20))

    assert len({rows(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9
    assert rows(0, 0) != tuple(range(20))


def test_order_of_no_rows_is_an_error():
    with pytest.raises(ValueError, match="at least one row"):
        TaskOrder(0, seed=0, shuffle=True)


FILES = st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 100)), min_size=1, max_size=4)
WEIGHTED = {"files": FILES, "seed": st.integers(0, 2**63 - 1), "shuffle": st.booleans()}


def weighted(files, seed, shuffle) -> WeightedOrder:
    return WeightedOrder([size for size, _ in files], [weight for _, weight in files], seed, shuffle)


def by_file(files, draws) -> list[list[Draw]]:
    """The draws of each file, with row numbers within the file."""
    ends = list(accumulate(size for size, _ in files))
    split: list[list[Draw]] = [[] for _ in files]
    for draw in draws:
        file = next(number for number, end in enumerate(ends) if draw.row < end)
        split[file].append(draw._replace(row=draw.row - (ends[file] - files[file][0])))
    return split


@given(num_draws=st.integers(0, 200), **WEIGHTED)
def test_files_are_drawn_in_proportion_at_any_time(files, seed, shuffle, num_draws):
    order = weighted(files, seed, shuffle)
    draws = [order.at(position) for position in range(num_draws)]
    whole = sum(weight for _, weight in files)
    for (_, weight), drawn in zip(files, by_file(files, draws), strict=True):
        assert abs(len(drawn) - num_draws * weight / whole) < len(files)


@given(**WEIGHTED)
def test_every_row_of_a_file_once_a_pass_of_that_file(files, seed, shuffle):
    order = weighted(files, seed, shuffle)
    draws = [order.at(position) for position in range(200)]
    assert len(set(draws)) == len(draws)  # so every group of a run has its own uid
    for (size, _), drawn in zip(files, by_file(files, draws), strict=True):
        for start in range(0, len(drawn), size):
            one_pass = drawn[start : start + size]
            assert {draw.epoch for draw in one_pass} == {start // size}
            assert len({draw.row for draw in one_pass}) == len(one_pass)
            assert shuffle or [draw.row for draw in one_pass] == list(range(len(one_pass)))


@given(start=st.integers(0, 10**12), **WEIGHTED)
def test_weighted_draws_depend_on_nothing_but_the_position(files, seed, shuffle, start):
    order, other = weighted(files, seed, shuffle), weighted(files, seed, shuffle)
    backwards = [other.at(start + ahead) for ahead in reversed(range(20))]
    assert [order.at(start + ahead) for ahead in range(20)] == backwards[::-1]


def test_weights_as_they_are_written_are_kept_exactly():
    order = WeightedOrder([5, 5, 5], [0.1, 0.2, 0.7], seed=3, shuffle=True)
    files = [order.at(position).row // 5 for position in range(10_000)]
    for start in range(0, 10_000, 1000):
        assert [files[start : start + 1000].count(file) for file in range(3)] == [100, 200, 700]


def test_each_pass_over_a_file_has_its_own_order():
    order = WeightedOrder([20, 20], [1, 1], seed=0, shuffle=True)
    drawn = [order.at(position) for position in range(120)]
    passes = {(draw.row // 20, draw.epoch): [] for draw in drawn}
    for draw in drawn:
        passes[draw.row // 20, draw.epoch].append(draw.row % 20)
    assert len({tuple(rows) for rows in passes.values()}) == len(passes) == 6


def test_epoch_has_as_many_draws_as_rows():
    assert task_order([3, 5], [9, 1], 0, True).num_rows == task_order([3, 5], (), 0, True).num_rows == 8
    assert type(task_order([3, 5], (), 0, True)) is TaskOrder


def test_a_file_without_rows_cannot_be_weighted():
    with pytest.raises(DataError, match="train file 2 of 2 has no rows to draw"):
        task_order([3, 0], [1, 1], 0, True)
