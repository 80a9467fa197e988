"""The program that runs a function in another interpreter, driven by its lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.harness import function_worker
from agentrl.harness.function_worker import MAX_LINE_BYTES, plain

TASK = {"instruction": "Go.", "index": 3}
ENDPOINT = {"base_url": "u/v1", "root_url": "u", "key": "k", "model": "m"}
COMMANDS = """
import asyncio
left = []
async def one(task, endpoint):
    result = await endpoint.run_command("ls", timeout_s=task.index)
    return result.exit_code + len(result.output) + result.timed_out
async def in_thread(task, endpoint):
    loop = asyncio.get_running_loop()
    call = lambda: asyncio.run_coroutine_threadsafe(endpoint.run_command("ls"), loop).result().exit_code
    return await asyncio.to_thread(call)
async def other_loop(task, endpoint):
    await asyncio.to_thread(lambda: asyncio.run(endpoint.run_command("ls")))
async def stops(task, endpoint):
    await asyncio.wait_for(endpoint.run_command("sleep"), 0.01)
async def late(task, endpoint):
    left.append(endpoint)
    if len(left) == 2:
        await left[0].run_command("ls")
async def long(task, endpoint):
    await endpoint.run_command("x" * 2**21)
async def many(task, endpoint):
    results = await asyncio.gather(*(endpoint.run_command(str(n)) for n in range(3)))
    return float("".join(result.output for result in results))
async def returns(task, endpoint):
    return task.index
def plain(task, endpoint): ...
"""


class Driven:
    """The program with pipes."""

    def __init__(self, target: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, function_worker.__file__, target, "4"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.first = self.read()

    def read(self) -> dict[str, object]:
        return json.loads(self.process.stdout.readline())

    def send(self, **message: object) -> None:
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, number: int = 0) -> None:
        self.send(id=number, task=TASK, endpoint=ENDPOINT)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture
def drive(tmp_path):
    """Starts the program with a function of `agent.py`."""
    made = []

    def new(function: str, text: str = COMMANDS, file: str = "agent.py", module: str | None = None) -> Driven:
        (tmp_path / file).write_text(text)
        made.append(Driven(f"{module or tmp_path / file}:{function}", tmp_path))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.mark.parametrize("module", [None, "agent"])
def test_a_function_of_a_file_or_module_returns_a_number(drive, module):
    driven = drive("returns", module=module)
    assert driven.first == {"ready": True}
    driven.begin(number=5)
    assert driven.read() == {"id": 5, "returned": 3.0}


def test_a_command_is_asked_for_and_its_result_returned(drive):
    driven = drive("one")
    driven.begin()
    assert driven.read() == {"id": 0, "call": 0, "command": "ls", "timeout_s": 3}
    driven.send(id=0, **{"return": 0}, result={"output": "abc", "exit_code": 2, "timed_out": True})
    assert driven.read() == {"id": 0, "returned": 6.0}


def test_a_command_from_a_thread(drive):
    driven = drive("in_thread")
    driven.begin()
    call = driven.read()["call"]
    driven.send(id=0, **{"return": call}, result={"output": "", "exit_code": 2, "timed_out": False})
    assert driven.read() == {"id": 0, "returned": 2.0}


def test_results_in_another_order_reach_their_commands(drive):
    driven = drive("many")
    driven.begin()
    calls = [driven.read() for _ in range(3)]
    for call in reversed(calls):
        result = {"output": call["command"], "exit_code": 0, "timed_out": False}
        driven.send(id=0, **{"return": call["call"]}, result=result)
    assert driven.read() == {"id": 0, "returned": 12.0}


def test_a_failure_of_a_command_is_an_exception_there(drive):
    driven = drive("one")
    driven.begin()
    driven.send(id=0, **{"return": driven.read()["call"]}, error="no space left")
    assert "RuntimeError: no space left" in driven.read()["failed"]


def test_a_command_nobody_waits_for_is_stopped(drive):
    driven = drive("stops")
    driven.begin()
    call = driven.read()["call"]
    assert driven.read() == {"id": 0, "stop": call}
    assert "TimeoutError" in driven.read()["failed"]


def test_a_cancelled_request_answers_and_others_go_on(drive):
    driven = drive("one")
    driven.begin(0)
    driven.begin(1)
    first, second = driven.read(), driven.read()
    driven.send(cancel=0)
    driven.send(cancel=9)
    assert driven.read() == {"id": 0, "stop": first["call"]}
    assert "CancelledError" in driven.read()["failed"]
    driven.send(id=0, **{"return": first["call"]}, result={"output": "", "exit_code": 1, "timed_out": False})
    driven.send(id=1, **{"return": second["call"]}, result={"output": "", "exit_code": 1, "timed_out": False})
    assert driven.read() == {"id": 1, "returned": 1.0}


@pytest.mark.parametrize(
    ("function", "shown"),
    [("long", f"at most {MAX_LINE_BYTES} can be sent"), ("other_loop", "use asyncio.run_coroutine_threadsafe")],
)
def test_a_command_that_cannot_be_sent_is_an_exception(drive, function, shown):
    driven = drive(function)
    driven.begin()
    assert shown in driven.read()["failed"]


def test_the_endpoint_of_a_rollout_that_has_ended_runs_no_command(drive):
    driven = drive("late")
    driven.begin(0)
    assert driven.read() == {"id": 0, "returned": None}
    driven.begin(1)
    assert "the rollout has ended" in driven.read()["failed"]


@pytest.mark.parametrize(
    ("function", "text", "shown"),
    [
        ("absent", COMMANDS, "has no 'absent'"),
        ("plain", COMMANDS, "must be a coroutine function"),
        ("run", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("run", "import sys; sys.exit('no licence')", "SystemExit: no licence"),
        ("run", "import worker_process", "ModuleNotFoundError: No module named 'worker_process'"),
        ("run", "async def run(:", "SyntaxError"),
    ],
)
def test_what_cannot_be_called_is_refused(drive, function, text, shown):
    assert shown in drive(function, text).first["refused"]


def test_a_file_with_the_name_of_a_library_hides_nothing(drive):
    text = "import json\nasync def run(task, endpoint): return len(json.dumps([]))\n"
    driven = drive("run", text, file="json.py")
    driven.begin()
    assert driven.read() == {"id": 0, "returned": 2.0}


def test_the_end_of_the_input_ends_a_function_that_blocks_everything(drive):
    driven = drive("run", "import time\nasync def run(task, endpoint):\n    print()\n    time.sleep(1000)\n")
    driven.begin()
    driven.process.stdin.close()
    assert driven.process.wait(60) is not None


@pytest.mark.parametrize(
    ("returned", "sent"),
    [
        (None, None),
        (1, 1.0),
        (True, True),
        ("good", "'good'"),
        (float("nan"), "nan"),
        (10**400, "int: OverflowError"),
        ([1] * 99, repr([1] * 99)[:100]),
    ],
)
def test_only_numbers_are_sent_as_numbers(returned, sent):
    assert plain(returned) == sent
    assert type(plain(returned)) is type(sent)
