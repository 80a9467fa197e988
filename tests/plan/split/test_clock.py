from __future__ import annotations

import asyncio
import time

import pytest

from agentrl.plan.split.clock import StalledError, run_virtual


def test_an_hour_of_waiting_takes_no_time():
    async def wait() -> float:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        return asyncio.get_running_loop().time()

    started = time.perf_counter()
    assert run_virtual(wait()) == pytest.approx(3600)
    assert time.perf_counter() - started < 1


def test_events_happen_in_the_order_of_their_times():
    async def order() -> list[float]:
        seen: list[float] = []

        async def one(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(asyncio.get_running_loop().time())

        await asyncio.gather(*(one(seconds) for seconds in (3, 1, 2.5, 1)))
        return seen

    assert run_virtual(order()) == pytest.approx([1, 1, 2.5, 3])


def test_waiting_for_nothing_ends_with_an_error():
    with pytest.raises(StalledError):
        run_virtual(asyncio.Event().wait())


def test_an_error_of_the_code_is_raised():
    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_virtual(fail())
