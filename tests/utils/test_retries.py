"""One retry policy for all callers of a server: growing waits, pauses requested by the server, and an end."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.utils.retries import MAX_RETRY_AFTER_S, GaveUpError, Retries, TryAgainError, raise_if_busy


def outcome(*failures: Exception, num_tries: int = 4, callers: int = 1, max_concurrent: int = 1):
    """(results of the callers, waits) when the first tries fail."""
    left, waits = list(failures), []

    async def sleep(seconds):
        waits.append(seconds)

    async def attempt():
        if left:
            raise left.pop(0)
        return "done"

    async def main():
        retries = Retries(num_tries, max_concurrent, sleep)
        return await asyncio.gather(*(retries.run(attempt, b"body") for _ in range(callers)))

    return asyncio.run(main()), waits


def test_waits_double_and_are_spread_by_the_body():
    results, waits = outcome(*[TryAgainError("busy")] * 3)
    assert results == ["done"]
    assert 0.25 <= waits[0] <= 0.75
    assert waits == [waits[0], 2 * waits[0], 4 * waits[0]]


def test_the_last_failure_ends_the_tries():
    with pytest.raises(GaveUpError, match=r"^2 tries failed, last error: second$"):
        outcome(TryAgainError("first"), TryAgainError("second"), num_tries=2)


def test_other_errors_are_not_retried():
    with pytest.raises(KeyError):
        outcome(KeyError("bug"))


def test_retry_after_applies_to_all_callers():
    results, waits = outcome(TryAgainError("busy", 17.0), callers=2)
    assert results == ["done", "done"]
    assert len(waits) == 2
    assert all(16 < wait <= 17 for wait in waits)


def test_too_long_retry_wait_ends_retries():
    with pytest.raises(GaveUpError, match="it asks to wait 301 seconds"):
        raise_if_busy(429, {"Retry-After": str(MAX_RETRY_AFTER_S + 1)}, "why")


@pytest.mark.parametrize("status", [200, 307, 400, 401, 404, 422])
def test_other_statuses_are_not_for_retries(status):
    raise_if_busy(status, {"Retry-After": "3"}, "why")


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
@pytest.mark.parametrize(
    ("asked", "wait_s"),
    [("3", 3.0), (" 0.5 ", 0.5), ("", None), ("soon", None), ("-1", None), ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0)],
)
def test_a_busy_server_may_ask_for_a_wait(status, asked, wait_s):
    with pytest.raises(TryAgainError, match=r"^why$") as caught:
        raise_if_busy(status, {"Retry-After": asked}, "why")
    assert caught.value.wait_s == wait_s
