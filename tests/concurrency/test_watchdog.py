"""The watchdog's verdicts under a fake clock, and the calls it watches."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentrl.concurrency import CircuitBreaker, Offload, OverdueError, watchdog_process
from agentrl.concurrency.watchdog import Watchdog, watchdog
from agentrl.concurrency.watchdog_process import GRACE_ABANDONED_S, GRACE_S, HEAD, SIZE, SLOT, Watch, is_stopped


def write(memory, slot, due, left, name):
    SLOT.pack_into(memory, HEAD.size + slot * SLOT.size, due, left, name)


def verdicts(memory, times, *, beating=False, signals=-1):
    """The first verdict at any of `times`, with its time."""
    watch = Watch(os.getpid(), memory, signals)
    for number, now in enumerate(times):
        if beating:
            HEAD.pack_into(memory, 0, number)
        if why := watch.verdict(now):
            return now, why
    return None


def every_half_second(start, stop):
    return [start + number / 2 for number in range(int(2 * (stop - start)) + 1)]


def test_call_past_its_deadline_that_holds_the_gil():
    memory = bytearray(SIZE)
    write(memory, 3, 1002.0, 0.0, b"tool 'search'")
    when, why = verdicts(memory, every_half_second(1000.0, 1030.0))
    assert when == 1002 + GRACE_S
    assert why.startswith("tool 'search': 10 seconds past the deadline")
    assert "isolation: process" in why


@pytest.mark.parametrize(
    ("slot", "times", "beating"),
    [
        ((1002.0, 0.0), every_half_second(1000.0, 1100.0), True),  # other calls run
        ((0.0, 0.0), every_half_second(1000.0, 1100.0), False),  # no call runs
        ((2000.0, 0.0), every_half_second(1000.0, 1100.0), False),  # the call still has time
        ((1002.0, 1.0), every_half_second(1000.0, 1100.0), False),  # others ran after its deadline
        ((1002.0, 0.0), range(1000, 1500, 20), False),  # the machine sleeps, and this process with it
    ],
)
def test_watchdog_raises_no_false_alarm(slot, times, beating):
    memory = bytearray(SIZE)
    write(memory, 0, *slot, b"tool 'x'")
    assert verdicts(memory, times, beating=beating) is None


def test_abandoned_call_that_later_holds_the_gil():
    memory = bytearray(SIZE)
    write(memory, 0, 1000.0, 1.0, b"tool 'x'")
    assert verdicts(memory, every_half_second(1000.0, 1200.0))[0] == 1000 + GRACE_ABANDONED_S


def test_watchdog_ignores_other_signals():
    reader, writer = os.pipe()
    memory = bytearray(SIZE)
    assert verdicts(memory, every_half_second(1000.0, 1100.0), signals=reader) is None
    os.write(writer, b"\2")
    when, why = verdicts(memory, every_half_second(1000.0, 1100.0), signals=reader)
    assert (when, why[:11]) == (1000.5 + GRACE_S, "interrupted")
    os.write(writer, b"\2")
    assert verdicts(memory, every_half_second(1000.0, 1100.0), signals=reader)[0] == 1001.5
    assert verdicts(memory, every_half_second(1000.0, 1100.0), signals=reader, beating=True) is None
    os.close(reader)
    os.close(writer)


def test_process_stopped_by_a_signal():
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        process.send_signal(19)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        process.kill()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (a thread's end has no event)
            await asyncio.sleep(0.005)


def watched():
    """(deadline over at, abandoned) of each call that is watched now."""
    slots = (SLOT.unpack_from(watchdog._memory, HEAD.size + number * SLOT.size) for number in range(512))
    return {name.rstrip(b"\0").decode(): (due, left) for due, left, name in slots if due}


def test_calls_are_watched_while_they_run():
    offload, ended = Offload(), threading.Event()

    async def asleep():
        await asyncio.sleep(60)

    async def main():
        seen = [await offload.run_function(watched, 5.0, CircuitBreaker("quick"))]
        with pytest.raises(OverdueError):
            await offload.run_function(lambda: ended.wait(20), 0.05, CircuitBreaker("slow"))
        running = asyncio.create_task(offload.run(asleep, 0.2, CircuitBreaker("late")))
        await asyncio.sleep(0.1)
        seen.append(watched())
        with pytest.raises(OverdueError):
            await running
        ended.set()
        await until(lambda: "slow" not in watched())
        return [*seen, watched()]

    quick, slow, after = asyncio.run(main())
    offload.close()
    assert quick["quick"][1] == 0
    assert (slow["slow"][1], slow["late"][1]) == (1, 0)
    assert {"quick", "slow", "late"} & after.keys() == set()  # tools of other tests may still hang


def test_watchdog_starts_with_the_first_call_and_stops_on_request():
    own = Watchdog()
    slot = own.enter("x", 1.0)
    process = own._process
    assert process.poll() is None
    own.leave(slot)
    own.stop()
    assert process.returncode == 0
    assert own.enter("x", 1.0) is not None  # the next call starts a new watchdog
    own.stop()


def test_watchdog_keeps_running_while_a_call_runs_at_exit():
    own = Watchdog()
    slot = own.enter("x", 1.0)
    process = own._process
    own.finish()
    assert process.poll() is None
    own.leave(slot)
    own.finish()
    assert process.returncode == 0


def test_watchdog_process_imports_only_the_standard_library():
    source = Path(watchdog_process.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    assert names <= sys.stdlib_module_names
