"""The order of rows: complete, seeded, and the same from wherever it is resumed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.data.order import Draw, TaskOrder

ORDERS = {"num_rows": st.integers(1, 40), "seed": st.integers(0, 2**63 - 1), "shuffle": st.booleans()}
exhaustive = settings(derandomize=True, deadline=None)


@exhaustive
@given(epoch=st.integers(0, 5), **ORDERS)
def test_every_row_once_an_epoch(num_rows, seed, shuffle, epoch):
    order = TaskOrder(num_rows, seed, shuffle)
    draws = [order.at(position) for position in range(epoch * num_rows, (epoch + 1) * num_rows)]
    assert {draw.epoch for draw in draws} == {epoch}
    assert sorted(draw.row for draw in draws) == list(range(num_rows))


@exhaustive
@given(size=st.integers(1, 50), resumed_at=st.integers(0, 6), **ORDERS)
def test_resumed_anywhere_it_goes_on_as_if_never_stopped(num_rows, seed, shuffle, size, resumed_at):
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


def test_no_rows_is_a_mistake():
    with pytest.raises(ValueError, match="at least one row"):
        TaskOrder(0, seed=0, shuffle=True)
