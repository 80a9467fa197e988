"""Runs shell commands of a harness in the sandbox of the rollout's task folder."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from agentrl.errors import AgentRLError, DataError
from agentrl.sandboxes.base import RunResult, SandboxEndedError, SandboxUnavailableError
from agentrl.tools.base import InfraError
from agentrl.tools.task_folders import TaskFolderState
from agentrl.types.task import Task

_NOT_RUN, KILLED = 126, 137
"""Exit codes of a command that cannot run, and of a command that signal 9 ended; bash uses the same codes."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command.

    Attributes:
        output: standard output and standard error, in the order of writing. The middle of a long output is left out.
        exit_code: negative after a signal; 137 if the command ended the sandbox (the next command then gets a new
            sandbox).
        timed_out: whether the command was ended after `timeout_s`.
    """

    output: str
    exit_code: int
    timed_out: bool


class TaskCommands:
    """Runs the commands of a harness in one rollout.

    An instance can be used only on the event loop on which it was created.

    Args:
        folder: the started task folder; None if the row is not a task folder.
        timeout_s: default timeout of `run`, in seconds.

    Attributes:
        folder: see the argument.
        failure: the error that causes the rollout to be dropped; None if there is none. The rollout is dropped even
            if the harness caught the error.
        failed: event that is set together with `failure`.
    """

    def __init__(self, task: Task, folder: TaskFolderState | None, timeout_s: float) -> None:
        self._task, self.folder, self._timeout_s = task, folder, timeout_s
        self._running: set[asyncio.Future[CommandResult]] = set()
        self._loop, self._closed = asyncio.get_running_loop(), False
        self.failure: AgentRLError | InfraError | None = None
        self.failed = asyncio.Event()

    async def run(self, command: str, timeout_s: float | None = None) -> CommandResult:
        """Run a shell command in the working folder of the task.

        If the caller is cancelled, the command is ended and the sandbox is kept.

        Raises:
            DataError: the row is not a task folder.
            InfraError: the sandbox failed. The rollout is dropped.
            RuntimeError: the rollout has ended, or the call comes from another event loop.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("from a thread, use asyncio.run_coroutine_threadsafe(endpoint.run_command(...), loop)")
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise RuntimeError("the rollout has ended")
        seconds = _checked(command, self._timeout_s if timeout_s is None else timeout_s)
        running = asyncio.ensure_future(self._run(command, seconds))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await running

    async def close(self) -> None:
        """End the running commands."""
        self._closed = True
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, command: str, seconds: float) -> CommandResult:
        if self.folder is None:
            where = f"row {self._task.index} of '{self._task.data_source}'"
            raise self._failed(DataError(f"{where}: endpoint.run_command needs a task folder (docs/harnesses.md)"))
        try:
            return _result(await self.folder.run_command(command, seconds))
        except SandboxEndedError as error:  # the policy sees the error of its command, as with the tool bash
            return CommandResult(f"{error}; its files are lost\n", KILLED, timed_out=False)
        except SandboxUnavailableError as error:
            raise self._failed(InfraError(str(error))) from error

    def _failed(self, failure: AgentRLError | InfraError) -> AgentRLError | InfraError:
        self.failure = failure
        self.failed.set()
        return failure


def _checked(command: object, seconds: object) -> float:
    if not isinstance(command, str):
        raise TypeError(f"run_command: expected a command as text, not {command!r:.100}")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValueError(f"run_command: expected timeout_s above 0, not {seconds!r:.100}")
    return float(seconds)


def _result(result: RunResult) -> CommandResult:
    code = _NOT_RUN if result.exit_code is None else result.exit_code
    return CommandResult(result.output or result.error, code, result.timed_out)
