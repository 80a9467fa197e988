from __future__ import annotations

import pytest

from agentrl.concurrency import CircuitBreaker, UnavailableError
from agentrl.concurrency import circuit_breaker as lane
from agentrl.concurrency.mailbox import Mailbox, Reply


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(lane.time, "monotonic", lambda: now[0])
    return now


def refused(tried):
    try:
        tried.enter()
    except UnavailableError:
        return True
    return False


def hung(**limits):
    filled = CircuitBreaker("test", **limits)
    for _ in range(3):
        filled.abandon(Reply(Mailbox(None)))
    return filled


def test_a_row_of_hung_calls_closes_the_lane_but_for_a_try_now_and_then(clock):
    closed = hung(max_in_row=3)
    assert refused(closed)
    clock[0] += lane.RETRY_S
    assert [refused(closed) for _ in range(2)] == [False, True]
    clock[0] += lane.RETRY_S
    closed.enter()
    closed.ended()  # that call returned in time
    assert not any(refused(closed) for _ in range(5))
    assert closed.num_abandoned == 3  # the abandoned calls still count towards the limit


def test_however_many_succeed_the_number_left_behind_is_bounded(clock):
    full = hung(max_in_row=2, max_abandoned=3)
    full.ended()
    clock[0] += lane.RETRY_S
    with pytest.raises(UnavailableError, match="3 earlier calls of test still hang"):
        full.enter()


def test_calls_that_another_kept_from_ending_do_not_close_the_lane(clock):
    bystander = CircuitBreaker("test", max_in_row=2)
    for _ in range(5):
        bystander.abandon(Reply(Mailbox(None)), at_fault=False)
    assert not refused(bystander)
    assert bystander.num_abandoned == 5
