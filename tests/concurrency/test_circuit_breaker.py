from __future__ import annotations

import pytest

from agentrl.concurrency import CircuitBreaker, UnavailableError
from agentrl.concurrency import circuit_breaker as breaker
from agentrl.concurrency.mailbox import Mailbox, Reply


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(breaker.time, "monotonic", lambda: now[0])
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


def test_consecutive_hung_calls_open_the_breaker_except_for_trial_calls(clock):
    closed = hung(max_in_row=3)
    assert refused(closed)
    clock[0] += breaker.RETRY_S
    assert [refused(closed) for _ in range(2)] == [False, True]
    clock[0] += breaker.RETRY_S
    closed.enter()
    closed.ended()  # that call returned in time
    assert not any(refused(closed) for _ in range(5))
    assert closed.num_abandoned == 3  # the abandoned calls still count towards the limit


def test_success_does_not_reset_the_limit_of_abandoned_calls(clock):
    full = hung(max_in_row=2, max_abandoned=3)
    full.ended()
    clock[0] += breaker.RETRY_S
    with pytest.raises(UnavailableError, match="3 earlier calls of test still hang"):
        full.enter()


def test_calls_blocked_by_another_call_do_not_open_the_breaker(clock):
    bystander = CircuitBreaker("test", max_in_row=2)
    for _ in range(5):
        bystander.abandon(Reply(Mailbox(None)), at_fault=False)
    assert not refused(bystander)
    assert bystander.num_abandoned == 5
