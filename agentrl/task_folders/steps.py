"""Runs the steps of a task, one after another in one sandbox, and combines their rewards as Harbor does."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean

from agentrl.data.task_folders.files import FilesError, folder_members
from agentrl.data.task_folders.folder import TaskFolder
from agentrl.data.task_folders.steps import SETUP, WORKDIR, Step
from agentrl.sandboxes.base import EndsProcesses, Sandbox, SandboxEndedError, SandboxUnavailableError
from agentrl.task_folders.running import send_files
from agentrl.task_folders.verifier import SCORE, VerifierError, empty, verify

_LOGGER = logging.getLogger(__name__)
Rewards = Mapping[str, float]


class SetupError(Exception):
    """The setup of a step failed: the remaining steps are left out."""


class TaskSteps:
    """The steps of one rollout of a task. A task without steps is one step with the tests of the task.

    Args:
        folder: the working folder of the task.
    """

    def __init__(self, task: TaskFolder, folder: str) -> None:
        self._task, self._folder = task, folder
        self._steps: Sequence[Step | None] = task.steps or (None,)
        self._found: list[Rewards | None] = []
        self._ended = False

    def filling(self, fill: Callable[[Sandbox], Awaitable[None]]) -> Callable[[Sandbox], Awaitable[None]]:
        """Return what fills a sandbox: the files of the task, and those of the step that runs."""

        async def filled(sandbox: Sandbox) -> None:
            await fill(sandbox)
            try:
                await self._begin(sandbox)
            except SetupError as error:
                raise SandboxUnavailableError(str(error)) from error

        return filled

    async def next(self, sandbox: Sandbox) -> str | None:
        """Score the step that runs, and begin the next one; return its instruction, None if there is none.

        Raises:
            VerifierError, SandboxEndedError, SandboxUnavailableError: see `verify`.
        """
        if self._ended:
            return None
        step = self._steps[len(self._found)]
        rewards = await verify(sandbox, self._task, step)
        self._found.append(rewards)
        self._ended = len(self._found) == len(self._steps) or (step is not None and ends_task(step, rewards))
        if self._ended:
            return None
        try:
            await self._begin(sandbox)
        except SetupError as error:
            _LOGGER.warning("%s", error)
            self._found.append(None)
            self._ended = True
            return None
        return self._task.steps[len(self._found)].instruction

    async def rewards(self, sandbox: Sandbox) -> dict[str, float]:
        """Return the rewards of the task. The steps that the model did not reach are scored as it left them.

        Raises:
            VerifierError, SandboxEndedError, SandboxUnavailableError: see `verify`.
        """
        while not self._ended:
            await self.next(sandbox)
        return combined(self._task, self._found)

    async def _begin(self, sandbox: Sandbox) -> None:
        """Prepare the step that runs, if there is one."""
        if not self._ended and (step := self._steps[len(self._found)]) is not None:
            await begin_step(sandbox, self._task, step, self._folder)


async def begin_step(sandbox: Sandbox, task: TaskFolder, step: Step, folder: str) -> None:
    """Prepare a step: leave nothing of the tests before, copy its files and run its `setup.sh`.

    Args:
        folder: the working folder of the task.

    Raises:
        SetupError: `setup.sh` failed.
        SandboxUnavailableError: the files could not be copied, or the sandbox failed.
    """
    if step is not task.steps[0]:
        assert isinstance(sandbox, EndsProcesses)  # of a kind that has `PoolSettings.setups`
        await empty(sandbox)
    try:
        members = folder_members(step.path / WORKDIR, folder)
    except FilesError as error:
        raise SandboxUnavailableError(f"the files of step '{step.name}' of '{task.name}': {error}") from error
    await send_files(sandbox, members, f"copying the files of step '{step.name}' of '{task.name}'")
    if (step.path / SETUP).is_file():
        try:
            await _set_up(sandbox, task, step)
        except SandboxEndedError as error:
            raise SandboxUnavailableError(f"setup.sh of step '{step.name}' of '{task.name}': {error}") from error


async def _set_up(sandbox: Sandbox, task: TaskFolder, step: Step) -> None:
    result = await sandbox.run_command("bash ./setup.sh", task.settings.environment.build_timeout_sec)
    if result.exit_code != 0:
        why = "did not end in time" if result.timed_out else f"exit code {result.exit_code}"
        said = " ".join(result.output.split())[-300:]
        raise SetupError(f"setup.sh of step '{step.name}' of '{task.name}': {why}: {said}")


def ends_task(step: Step, rewards: Rewards) -> bool:
    """Whether the rewards of a step are below its `min_reward`, so that the remaining steps are left out."""
    least = step.settings.min_reward
    if least is None:
        return False
    limits = least if isinstance(least, dict) else {SCORE: least}
    return any(rewards.get(name, -math.inf) < limit for name, limit in limits.items())


def combined(task: TaskFolder, found: Sequence[Rewards | None]) -> dict[str, float]:
    """Return the rewards of the task.

    Args:
        found: rewards of the steps so far; None for one whose setup failed.

    Raises:
        VerifierError: there are none.
    """
    known = [each for each in found if each is not None]
    if task.settings.multi_step_reward_strategy == "final":
        known = [each for each in found[-1:] if each is not None]
    names = list(dict.fromkeys(name for each in known for name in each))
    if not names:
        raise VerifierError(f"no step of '{task.name}' gave a reward")
    return {name: fmean(each.get(name, 0.0) for each in known) for name in names}
