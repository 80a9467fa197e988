from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from agentrl.concurrency import CircuitBreaker, Offload, OverdueError, UnavailableError, run


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(run, "GRACE_S", 0.2)


def offloaded(main):
    """The return value of `main(offload, breaker)`."""

    async def body():
        offload = Offload()
        try:
            return await main(offload, CircuitBreaker("test"))
        finally:
            offload.close()

    return asyncio.run(body())


def test_functions_and_coroutines_run_on_other_threads():
    async def coroutine():
        await asyncio.sleep(0)
        return threading.current_thread()

    async def main(offload, breaker):
        function = await offload.run_function(threading.current_thread, 5.0, breaker)
        return function, await offload.run(coroutine, 5.0, breaker)

    threads = offloaded(main)
    assert len({threading.main_thread(), *threads}) == 3
    assert all(thread.daemon for thread in threads)


def meet(barrier):
    barrier.wait()
    return threading.get_ident()


def test_many_calls_at_a_time_reuse_threads():
    async def main(offload, breaker):
        seen = set()
        for _ in range(3):
            all_at_once = threading.Barrier(8)  # the barrier opens only for eight threads at a time
            calls = [offload.run_function(partial(meet, all_at_once), 5.0, breaker) for _ in range(8)]
            seen.update(await asyncio.gather(*calls))
        return len(seen)

    assert 8 <= offloaded(main) < 24


def test_an_overdue_function_is_signalled_to_stop():
    gate = threading.Event()

    async def main(offload, breaker):
        with pytest.raises(OverdueError):
            await offload.run_function(gate.wait, 0.01, breaker, stop=gate.set)

    offloaded(main)
    assert gate.is_set()


def test_a_cancelled_caller_cancels_its_coroutine():
    started, ended = threading.Event(), []

    async def coroutine():
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main(offload, breaker):
        call = asyncio.create_task(offload.run(coroutine, 60, breaker))
        while not started.is_set():  # noqa: ASYNC110  # another thread's work
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return breaker.num_abandoned

    assert offloaded(main) == 0
    assert ended == [True]


def test_call_cancelled_before_its_first_step_ends_immediately(monkeypatch):
    monkeypatch.setattr(run, "GRACE_S", 60.0)
    begun, held, gate = [], threading.Event(), threading.Event()

    async def holding():
        held.set()
        gate.wait(10)  # blocks the thread, not its loop; the call learns nothing meanwhile

    async def coroutine():
        begun.append(True)

    async def main(offload, breaker):
        holder = asyncio.create_task(offload.run(holding, 60, breaker))
        await asyncio.to_thread(held.wait, 10)
        call = asyncio.create_task(offload.run(coroutine, 60, breaker))
        await asyncio.sleep(0)  # posted, but the loop thread has not been notified yet
        call.cancel()
        await asyncio.sleep(0)  # now the call is notified
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(call), 10)
        await holder
        return breaker.num_abandoned

    assert offloaded(main) == 0
    assert begun == []


def test_coroutine_that_ignores_cancellation_is_abandoned_and_the_loop_kept():
    gate = []

    async def stubborn():
        while not gate:
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue

    async def main(offload, breaker):
        breaker.max_abandoned = 1
        with pytest.raises(OverdueError):
            await offload.run(stubborn, 0.005, breaker)
        with pytest.raises(UnavailableError, match="1 earlier calls of test still hang"):
            await offload.run(stubborn, 0.005, breaker)
        gate.append(True)
        while breaker.num_abandoned:  # noqa: ASYNC110  # another thread's work
            await asyncio.sleep(0.001)
        await offload.run(stubborn, 5.0, breaker)
        return offload.num_replaced_loops

    assert offloaded(main) == 0


def test_a_detached_coroutine_outlives_its_caller():
    ended = []

    async def coroutine():
        await asyncio.sleep(0.01)
        ended.append(True)

    async def main(offload, breaker):
        running = offload.begin(coroutine, breaker)
        call = asyncio.create_task(running.result(60, detached=True))
        await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.wait([call])
        return ended.copy()

    assert offloaded(main) == []
    assert ended == [True]  # close() waited for it


def test_a_hung_thread_does_not_keep_the_program_from_ending():
    code = """
import asyncio, time
from agentrl.concurrency import CircuitBreaker, Offload, OverdueError

async def waits():
    await asyncio.to_thread(time.sleep, 60)

async def main():
    offload = Offload()
    sleeping = offload.run_function(lambda: time.sleep(60), 0.01, CircuitBreaker("a"))
    for call in (sleeping, offload.run(waits, 0.01, CircuitBreaker("b"))):
        try:
            await call
        except OverdueError:
            print("overdue")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("overdue\noverdue\n", "", 0)
