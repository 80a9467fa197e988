"""Commands of a harness in the sandbox of its task folder: results, failures, and their end."""

from __future__ import annotations

import asyncio
import math

import pytest

from agentrl.errors import DataError
from agentrl.harness.commands import CommandResult, TaskCommands
from agentrl.sandboxes.base import RunResult, SandboxEndedError, SandboxUnavailableError
from agentrl.tools.base import InfraError
from agentrl.types.task import Task


class Folder:
    """In place of the sandbox of a task folder: `sleep` runs until it is cancelled, exceptions are raised."""

    def __init__(self, *outcomes: object) -> None:
        self.outcomes, self.calls, self.ended = list(outcomes), [], 0

    async def run_command(self, command: str, seconds: float) -> object:
        self.calls.append((command, seconds))
        if command == "sleep":
            try:
                await asyncio.Event().wait()
            finally:
                self.ended += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def check(folder, steps):
    """Run the coroutine function `steps` with the commands of a rollout."""

    async def main():
        commands = TaskCommands(Task([], data_source="sums", index=4), folder, 7.5)
        await steps(commands)
        await commands.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (RunResult("a\n", exit_code=3), CommandResult("a\n", 3, timed_out=False)),
        (RunResult("a\n", exit_code=-9, timed_out=True), CommandResult("a\n", -9, timed_out=True)),
        (
            RunResult("", "OSError: no more processes"),
            CommandResult("OSError: no more processes", 126, timed_out=False),
        ),
    ],
)
def test_a_command_has_its_output_and_its_exit_code(outcome, expected):
    async def steps(commands):
        assert await commands.run("ls") == expected
        assert folder.calls == [("ls", 7.5)]

    check(folder := Folder(outcome), steps)


def test_a_command_that_ends_the_sandbox_is_no_failure():
    async def steps(commands):
        ended = await commands.run("kill", 2)
        assert (ended.exit_code, ended.timed_out) == (137, False)
        assert (await commands.run("ls")).output == "x"
        assert (commands.failure, commands.failed.is_set()) == (None, False)

    check(Folder(SandboxEndedError("the sandbox ended"), RunResult("x", exit_code=0)), steps)


@pytest.mark.parametrize(
    ("folder", "kind"), [(Folder(SandboxUnavailableError("no space left")), InfraError), (None, DataError)]
)
def test_a_failure_stays_whatever_the_function_does(folder, kind):
    async def steps(commands):
        for _ in range(2):
            with pytest.raises(kind):
                await commands.run("ls")
        assert commands.failed.is_set()
        assert isinstance(commands.failure, kind)

    check(folder, steps)


def test_a_command_ends_with_its_caller_and_with_the_rollout():
    async def steps(commands):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(commands.run("sleep"), 0.01)
        assert folder.ended == 1
        running = asyncio.ensure_future(commands.run("sleep"))
        await asyncio.sleep(0.01)
        await commands.close()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert folder.ended == 2
        with pytest.raises(RuntimeError, match="the rollout has ended"):
            await commands.run("ls")

    check(folder := Folder(), steps)


@pytest.mark.parametrize(
    "wrong", [(b"ls", 1), ("ls", 0), ("ls", math.inf), ("ls", math.nan), ("ls", True), ("ls", "1")]
)
def test_wrong_arguments_are_errors_of_the_function(wrong):
    async def steps(commands):
        with pytest.raises((TypeError, ValueError), match="run_command: expected"):
            await commands.run(*wrong)
        assert folder.calls == []
        assert commands.failure is None

    check(folder := Folder(), steps)


def test_another_event_loop_is_refused():
    async def steps(commands):
        with pytest.raises(RuntimeError, match="run_coroutine_threadsafe"):
            await asyncio.to_thread(lambda: asyncio.run(commands.run("ls")))

    check(Folder(), steps)
