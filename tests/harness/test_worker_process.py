"""A process in another interpreter: answers, nonsense, its end, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.harness.worker_process import MAX_LINE_BYTES, WorkerProcess, variables_of
from agentrl.tools.base import InfraError

BEGIN = """
import json, os, subprocess, sys, time
def say(**answer): print(json.dumps(answer), flush=True)
say(ready=True)
for line in sys.stdin:
    request = json.loads(line)
    number, do = request.get("id"), request.get("do")
"""
ANSWER = BEGIN + "    say(id=number, pid=os.getpid())\n"
ECHO_CANCEL = BEGIN + "    say(id=1 if 'cancel' in request else 7, cancelled=request.get('cancel'))\n"
DIE = BEGIN + "    [print(f'line {n} of secret', file=sys.stderr) for n in range(9)]; sys.exit(3)\n"


@pytest.fixture
def start(monkeypatch):
    """Makes processes of a program, which end with the test."""
    monkeypatch.setattr("agentrl.harness.worker_process._END_S", 0.2)
    made: list[WorkerProcess] = []

    def new(program: str, **options) -> WorkerProcess:
        command = [sys.executable, "-S", "-E", "-c", program]
        made.append(WorkerProcess("the worker", command, {"PATH": os.defpath}, **{"start_timeout_s": 60.0, **options}))
        return made[-1]

    yield new
    for process in made:
        process.close()


def ask(process, request=None, receive=None):
    return asyncio.run(process.ask(request or {}, receive))


async def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_one_process_serves_several_event_loops(start):
    process = start(ANSWER)
    first, second = ask(process), ask(process)
    assert first["pid"] == second["pid"]
    assert (first["id"], second["id"]) == (0, 1)


def test_answers_in_another_order_reach_their_requests(start):
    process = start(BEGIN + "    if number: [say(id=n, of=n) for n in (1, 1, 0, 5, None, [])]\n")

    async def both():
        return await asyncio.gather(process.ask({}), process.ask({}))

    assert [answer["of"] for answer in asyncio.run(both())] == [0, 1]


def test_messages_before_the_answer_are_received(start):
    received = []
    process = start(BEGIN + "    say(id=number, call=3); say(id=number, stop=3); say(id=number, done=True)\n")
    assert ask(process, receive=received.append)["done"] is True
    assert [message.get("call", message.get("stop")) for message in received] == [3, 3]


def test_a_cancelled_request_is_cancelled_there(start):
    process = start(ECHO_CANCEL)

    async def main():
        first, second = (asyncio.ensure_future(process.ask({})) for _ in range(2))
        await until(lambda: len(process._waiting) == 2)
        first.cancel()
        return await second

    assert asyncio.run(main())["cancelled"] == 0


@pytest.mark.parametrize(
    "line", ["'<html>'", "'[1]'", "'NaN'", "'[' * 5000", f"'x' * {MAX_LINE_BYTES + 10}", "b'\\xff'.decode('latin')"]
)
def test_nonsense_is_an_infrastructure_failure(start, line):
    process = start(BEGIN + f"    print({line}, flush=True)\n")
    for _ in range(2):
        with pytest.raises(InfraError, match="the worker sent"):
            ask(process)
    assert process.failed


def test_the_end_of_the_process_fails_all_requests_with_its_last_lines(start):
    process = start(DIE, clean=lambda text: text.replace("secret", "KEY"))

    async def both():
        return await asyncio.gather(process.ask({}), process.ask({}), return_exceptions=True)

    failures = asyncio.run(both())
    assert all(isinstance(each, InfraError) for each in failures)
    assert str(failures[0]) == "the worker has ended: " + " | ".join(f"line {n} of KEY" for n in range(4, 9))


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("import time; time.sleep(1000)", InfraError),
        ("import sys; sys.exit(2)", InfraError),
        ('print(\'{"refused": "no module"}\')', ConfigError),
    ],
)
def test_a_process_that_does_not_start(start, program, kind):
    with pytest.raises(kind):
        ask(start(program, start_timeout_s=0.3 if "sleep" in program else 60.0))


def test_a_program_that_does_not_exist():
    process = WorkerProcess("the worker", ["/no/python"], {}, 1.0)
    with pytest.raises(InfraError, match="'/no/python': No such file"):
        ask(process)
    assert process.failed


@pytest.mark.parametrize("blocks", ["", "\n    signal.pthread_sigmask(0, [15, 2]); time.sleep(1000)"])
def test_closing_ends_the_process_and_its_descendants(start, blocks):
    left = "    child = subprocess.Popen(['sleep', '1000']); say(id=number, pids=[os.getpid(), child.pid])"
    process = start(f"import signal\n{BEGIN}{left}{blocks}\n")
    pids = ask(process)["pids"]
    process.close()
    asyncio.run(until(lambda: not any(map(runs, pids))))


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_number_of_a_process_that_has_ended_is_not_killed_later(start, monkeypatch):
    process = start(DIE)
    with pytest.raises(InfraError):
        ask(process)
    asyncio.run(until(lambda: process._process is None))
    monkeypatch.setattr(os, "killpg", lambda pid, number: pytest.fail("another process may have this number"))
    process.close()


def test_variables_are_those_of_the_interpreter_and_the_kept_ones(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("uv_cache", "y")
    assert set(variables_of(tmp_path / "python")) == {"PATH", "HOME", "LANG"}
    assert variables_of(tmp_path / "python")["PATH"].startswith(f"{tmp_path}{os.pathsep}")
    assert variables_of(tmp_path / "python", ("UV_",))["uv_cache"] == "y"
