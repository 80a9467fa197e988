"""The task folder of a rollout: the sandbox starts with the task's files, and the task's tests give the reward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agentrl.concurrency import Running
from agentrl.data.task_folders.rows import FOLDER_KEY
from agentrl.errors import DataError
from agentrl.sandboxes.base import (
    RunResult,
    Sandbox,
    SandboxEndedError,
    SandboxFileError,
    SandboxUnavailableError,
)
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.running import RunningCall, run_stoppable, running_call
from agentrl.sandboxes.settings import PoolSettings
from agentrl.task_folders import (
    NotRunnableError,
    TaskFolderError,
    TaskPlan,
    TaskSteps,
    content_of,
    plan,
    read_task_folder,
    score_of,
)
from agentrl.tools.base import InfraError
from agentrl.tools.binding import AgentData, OpensState, RolloutState
from agentrl.types.rollout import VERIFIER
from agentrl.types.task import Task

T = TypeVar("T")


class TaskFolders:
    """Opens the state of a row with a task folder. Tools that share a pool share one state; see `OpensState`."""

    name = VERIFIER

    def __init__(self, pool: SandboxPool) -> None:
        self._pool = pool
        self._plans: dict[str, TaskPlan] = {}

    def __eq__(self, other: object) -> bool:
        """Whether `other` uses the same pool of sandboxes."""
        return isinstance(other, TaskFolders) and self._pool is other._pool

    def __hash__(self) -> int:
        return hash(self._pool)

    def open(self, data: AgentData) -> RolloutState | None:
        """Return the state of the rollout; None if its row is not a task folder."""
        folder = folder_of(data.task)
        return None if folder is None else TaskFolderState(self._pool, self._plan(folder), data.request_id)

    def check_row(self, task: Task) -> None:
        """Reject a folder that is not a task, or that this kind of sandbox cannot run."""
        if (folder := folder_of(task)) is not None:
            self._plan(folder)

    def _plan(self, folder: str) -> TaskPlan:
        if folder not in self._plans:
            try:
                self._plans[folder] = plan(read_task_folder(Path(folder)), self._pool.settings)
            except (TaskFolderError, NotRunnableError) as error:
                raise DataError(str(error)) from error
        return self._plans[folder]


class TaskFolderState(RolloutState):
    """The sandbox of one rollout of a task folder."""

    def __init__(self, pool: SandboxPool, planned: TaskPlan, owner: str) -> None:
        self.name = VERIFIER
        self._pool, self._planned, self._owner = pool, planned, owner
        self._started = False
        self._stepping: asyncio.Future[str | None] | None = None
        self._steps = TaskSteps(planned.task, planned.setup.folder)

    @property
    def sandboxes(self) -> PoolSettings:
        """Settings of the sandbox."""
        return self._pool.settings

    @property
    def workdir(self) -> str:
        """The working folder of the task."""
        return self._planned.setup.folder

    async def start(self) -> str | None:
        """Reserve the sandbox, which starts at the first call."""
        self.start_with(())
        return None

    def start_with(self, readable: tuple[tuple[Path, str], ...]) -> None:
        """Reserve the sandbox, with readable folders; see `SandboxSetup.readable`."""
        self._started = True
        planned = replace(self._planned, setup=replace(self._planned.setup, readable=readable))
        content = content_of(planned)
        self._pool.reserve(self._owner, replace(content, fill=self._steps.filling(content.fill)))

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file.

        Raises:
            SandboxEndedError: the file cannot be written because of actions of the model in an earlier step.
            SandboxUnavailableError: the file cannot be written for another reason, or the sandbox failed.
        """
        why = "a file could not be written to a sandbox"
        try:
            async with await self._pool.of(self._owner) as sandbox:
                try:
                    await run_stoppable(sandbox, sandbox.upload(path, data))
                except SandboxEndedError as error:
                    raise SandboxUnavailableError(f"{why}: {error}") from error
                except SandboxFileError as error:
                    raise SandboxEndedError(f"{why}: {error}") from error
        except SandboxEndedError as error:
            if self._steps.num_scored:
                raise
            raise SandboxUnavailableError(str(error)) from error

    async def run_command(self, command: str, deadline_s: float) -> RunResult:
        """Run a shell command. If the caller is cancelled, the command is ended; the sandbox continues to run.

        Raises:
            SandboxEndedError: the command ended the sandbox; the next command gets a new sandbox.
            SandboxUnavailableError: the sandbox failed.
        """
        async with self.running_command(command, deadline_s) as running:
            return await running.wait()

    @asynccontextmanager
    async def running_command(self, command: str, deadline_s: float) -> AsyncIterator[RunningCall[RunResult]]:
        """Yield a running shell command. The end of the block ends the command, but not the sandbox.

        Raises:
            SandboxEndedError, SandboxUnavailableError: see `run_command`.
        """
        async with (
            await self._pool.of(self._owner) as sandbox,
            running_call(sandbox, sandbox.run_command(command, deadline_s)) as running,
        ):
            yield running

    async def next_step(self) -> str | None:
        """Score the finished step, and begin the next step. Return the instruction of the next step.

        Return None if there is no next step.

        If the caller is cancelled, for example at the rollout's deadline, the scoring continues; `reward` waits for it.

        Raises:
            InfraError: the finished step cannot be scored, or the next one cannot begin.
        """
        if not self._started or not self._planned.task.steps:
            return None
        self._stepping = asyncio.ensure_future(self._in_sandbox(self._steps.next))
        return await asyncio.shield(self._stepping)

    async def reward(self) -> float | None:
        """Run the tests in the sandbox of the rollout, and return the reward; None if `start` was not called.

        Raises:
            InfraError: there is no reward; see `task_folders.verifier.verify`.
        """
        if not self._started:
            return None
        if self._stepping is not None:
            await self._stepping
        return score_of(await self._in_sandbox(self._steps.rewards))

    def begin_release(self) -> Running[None] | None:
        """End the sandbox."""
        if self._stepping is not None:
            self._stepping.cancel()
        self._pool.release(self._owner)
        return None

    async def _in_sandbox(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Run `work` in the sandbox; if the sandbox has ended, run it in a new sandbox.

        Raises:
            InfraError: the work failed.
        """
        try:
            try:
                return await self._in_this_sandbox(work)
            except SandboxEndedError:  # commands of the model ended it; a new sandbox has the task's original files
                return await self._in_this_sandbox(work)
        except (SandboxUnavailableError, SandboxEndedError) as error:
            raise InfraError(str(error)) from error

    async def _in_this_sandbox(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        async with await self._pool.of(self._owner) as sandbox:
            return await work(sandbox)


def task_folder_state(data: AgentData) -> TaskFolderState | None:
    """Return the state of the task folder of a rollout; None if its row is not a task folder."""
    return next((each for each in data.states.values() if isinstance(each, TaskFolderState)), None)


def folder_of(task: Task) -> str | None:
    """Return the task folder of a row; None if the row is not a task folder."""
    folder = task.extra_info.get(FOLDER_KEY)
    if folder is not None and not isinstance(folder, str):
        raise DataError(f"field 'extra_info.{FOLDER_KEY}': expected the path of a folder")
    return folder


def has_steps(task: Task) -> bool:
    """Whether a row is a task folder with several steps. False for a folder that cannot be read."""
    folder = folder_of(task)
    with suppress(TaskFolderError):
        return folder is not None and bool(read_task_folder(Path(folder)).steps)
    return False


def check_task_folder(task: Task, states: Sequence[OpensState]) -> None:
    """Reject a row with a task folder unless all tools with a sandbox share the same sandbox.

    Raises:
        DataError: no tool has a sandbox, or several tools have sandboxes with different settings.
    """
    num_sandboxes = sum(isinstance(state, TaskFolders) for state in states)
    if folder_of(task) is None or num_sandboxes == 1:
        return
    if num_sandboxes:
        raise DataError("the tools of a task folder must share one sandbox: give all of them the same 'sandbox'")
    raise DataError(NO_SANDBOX)


NO_SANDBOX = (
    "a task folder needs a tool with a sandbox, such as bash:"
    " set rollout.multi_turn.tool_config_path (docs/task_folders.md)"
)
