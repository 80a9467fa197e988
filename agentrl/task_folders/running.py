"""Starts the sandbox of a task, with the files that its Dockerfile copies."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from secrets import token_hex

from agentrl.data.task_folders.dockerfile import Copy, Run
from agentrl.data.task_folders.files import FilesError, Member, copied_members, pack
from agentrl.data.task_folders.folder import ENVIRONMENT, TaskFolder
from agentrl.sandboxes.base import RunResult, Sandbox, SandboxUnavailableError
from agentrl.sandboxes.pool import Content, SandboxPool
from agentrl.task_folders.plan import TaskPlan, plan

STEP_S = 60.0
"""Timeout in seconds of one step of the preparation."""

_MKDIR = 'mkdir() { command mkdir -p "$@"; }'
"""`mkdir` that accepts existing folders, because a sandbox may already have a folder that the Dockerfile creates."""


class PrepareError(SandboxUnavailableError):
    """A command of agentrl failed in a sandbox. Earlier commands may be the cause, for example by filling the disk."""


@asynccontextmanager
async def task_sandbox(task: TaskFolder, pool: SandboxPool) -> AsyncIterator[Sandbox]:
    """Yield a sandbox that only this task uses. The sandbox ends at the end of the block.

    Raises:
        NotRunnableError: the sandboxes of this pool cannot run the task.
        SandboxUnavailableError: the sandbox did not start.
    """
    async with pool.borrowed(content_of(plan(task, pool.settings))) as owned, owned as sandbox:
        yield sandbox


def content_of(planned: TaskPlan) -> Content:
    """Return the initial content of a task's sandbox."""
    return Content(planned.setup, partial(_fill, planned))


async def send_files(sandbox: Sandbox, members: Sequence[Member], what: str, through: str = "/tmp") -> None:
    """Write files to the sandbox.

    Args:
        through: folder in the sandbox where an archive of the files is stored until it is unpacked.

    Raises:
        SandboxUnavailableError: the files cannot be read or unpacked.
        SandboxFileError: the files cannot be written.
    """
    if not members:
        return
    try:
        archive = pack(members)
    except FilesError as error:
        raise SandboxUnavailableError(f"{what}: {error}") from error
    path = f"{through}/.agentrl-{token_hex(8)}.tar"  # a name that programs in the sandbox cannot guess
    await sandbox.upload(path, archive)
    await prepare(sandbox, f"tar -xpf {path} -C / --no-same-owner && rm -f {path}", what)


async def prepare(sandbox: Sandbox, command: str, what: str) -> None:
    """Run a command that must succeed.

    Raises:
        PrepareError: the command failed; the message contains its output.
        SandboxUnavailableError: the command did not end in time, or the sandbox failed.
    """
    result = await sandbox.run_command(command, STEP_S)
    if result.timed_out:
        raise SandboxUnavailableError(failure(what, result, STEP_S))
    if result.exit_code != 0:
        raise PrepareError(failure(what, result, STEP_S))


def failure(what: str, result: RunResult, seconds: float) -> str:
    """Return why a command failed, with the end of its output."""
    why = f"no end in {seconds:g} seconds" if result.timed_out else f"exit code {result.exit_code}"
    return f"{what} failed: {why}: {' '.join(result.output.split())[-300:]}"


async def _fill(planned: TaskPlan, sandbox: Sandbox) -> None:
    context = planned.task.path / ENVIRONMENT
    for is_copy, steps in groupby(planned.steps, key=lambda step: isinstance(step, Copy)):
        if is_copy:
            copies = [step for step in steps if isinstance(step, Copy)]
            try:
                members = [member for step in copies for member in copied_members(step, context)]
            except FilesError as error:  # the files have changed since the plan
                raise SandboxUnavailableError(f"the files of '{planned.task.name}': {error}") from error
            await send_files(sandbox, members, f"copying the files of '{planned.task.name}'")
        else:
            for step in steps:
                if isinstance(step, Run):
                    await prepare(sandbox, _command(step), f"RUN {step.command} of '{planned.task.name}'")


def _command(step: Run) -> str:
    values = "".join(f"export {name}={shlex.quote(value)}; " for name, value in step.env)
    return f"{_MKDIR}; cd {shlex.quote(step.folder)} && {{ {values}{step.command}\n}}"
