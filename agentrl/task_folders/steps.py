"""Runs the steps of a task, one after another in one sandbox, and combines their rewards as Harbor does."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean

from agentrl.data.task_folders.files import FilesError, folder_members
from agentrl.data.task_folders.folder import TaskFolder
from agentrl.data.task_folders.steps import SETUP, WORKDIR, Step
from agentrl.sandboxes.base import Sandbox, SandboxEndedError, SandboxFileError, SandboxUnavailableError
from agentrl.task_folders.plan import TESTS_IN
from agentrl.task_folders.running import PrepareError, failure, send_files
from agentrl.task_folders.verifier import SCORE, empty, verify

_LOGGER = logging.getLogger(__name__)
Rewards = Mapping[str, float]


class SetupError(Exception):
    """The setup of a step failed."""


class TaskSteps:
    """The steps of one rollout of a task. A task without steps is treated as one step with the task's tests.

    Args:
        folder: the working folder of the task.
    """

    def __init__(self, task: TaskFolder, folder: str) -> None:
        self._task, self._folder = task, folder
        self._steps: Sequence[Step | None] = task.steps or (None,)
        self._found: list[Rewards] = []
        self._ended = False
        self._is_between = False
        """Whether a step has been scored, but `next` has not yet returned the next step's instruction."""

    @property
    def num_scored(self) -> int:
        """Number of steps that have been scored."""
        return len(self._found)

    def filling(self, fill: Callable[[Sandbox], Awaitable[None]]) -> Callable[[Sandbox], Awaitable[None]]:
        """Return a function that prepares a new sandbox: it calls `fill`, then prepares the current step.

        Args:
            fill: prepares the sandbox for the task, without its current step (`Content.fill`).
        """

        async def filled(sandbox: Sandbox) -> None:
            await fill(sandbox)
            await self._begin(sandbox)

        return filled

    async def next(self, sandbox: Sandbox) -> str | None:
        """Score the current step, begin the next step and return its instruction; return None after the last step.

        After a `SandboxEndedError`, start a new sandbox, call the function that `filling` returns on it, and call this
        method again.

        Raises:
            VerifierError, SandboxEndedError, SandboxUnavailableError: see `verify` and `begin_step`.
        """
        if not self._is_between and not self._ended:
            await self._score(sandbox)
            if not self._ended:
                self._is_between = True
                await self._begin(sandbox)
        self._is_between = False
        return None if self._ended else self._task.steps[len(self._found)].instruction

    async def rewards(self, sandbox: Sandbox) -> dict[str, float]:
        """Return the rewards of the task. Steps that the model did not reach are also scored.

        Raises:
            VerifierError, SandboxEndedError, SandboxUnavailableError: see `verify`.
        """
        while not self._ended:
            await self.next(sandbox)
        return combined(self._task, self._found)

    async def _begin(self, sandbox: Sandbox) -> None:
        """Prepare the current step, if there is one.

        If the setup of the second or a later step fails, that step and all steps after it score 0.

        Raises:
            SandboxEndedError, SandboxUnavailableError: see `begin_step`.
        """
        if self._ended or (step := self._steps[len(self._found)]) is None:
            return
        try:
            await begin_step(sandbox, self._task, step, self._folder)
        except SetupError as error:
            if not self._found:
                raise SandboxUnavailableError(str(error)) from error
            _LOGGER.warning("%s", error)
            nothing = dict.fromkeys((name for each in self._found for name in each), 0.0)
            self._found += [nothing] * (len(self._steps) - len(self._found))
            self._ended = True

    async def _score(self, sandbox: Sandbox) -> None:
        step = self._steps[len(self._found)]
        rewards = await verify(sandbox, self._task, step)
        self._found.append(rewards)
        self._ended = len(self._found) == len(self._steps) or (step is not None and ends_task(step, rewards))


async def begin_step(sandbox: Sandbox, task: TaskFolder, step: Step, folder: str) -> None:
    """Prepare a step: delete tests and logs of an earlier step, copy the step's files and run its `setup.sh`.

    Args:
        folder: the working folder of the task.

    Raises:
        SetupError: `setup.sh` failed.
        SandboxEndedError: programs in the sandbox left no room for the files.
        SandboxUnavailableError: the files could not be read, or the sandbox failed.
    """
    try:
        await _send_files(sandbox, task, step, folder)
    except (SandboxEndedError, FilesError) as error:
        raise SandboxUnavailableError(f"the files of step '{step.name}' of '{task.name}': {error}") from error
    except (PrepareError, SandboxFileError) as error:
        raise SandboxEndedError(f"the files of step '{step.name}' of '{task.name}': {error}") from error
    if (step.path / SETUP).is_file():
        try:
            await _set_up(sandbox, task, step)
        except SandboxEndedError as error:
            raise SandboxUnavailableError(f"setup.sh of step '{step.name}' of '{task.name}': {error}") from error


async def _send_files(sandbox: Sandbox, task: TaskFolder, step: Step, folder: str) -> None:
    through = "/tmp"
    if step is not task.steps[0]:
        await empty(sandbox)
        through = TESTS_IN  # the agent may have filled /tmp
    what = f"copying the files of step '{step.name}' of '{task.name}'"
    await send_files(sandbox, folder_members(step.path / WORKDIR, folder), what, through)


async def _set_up(sandbox: Sandbox, task: TaskFolder, step: Step) -> None:
    seconds = task.settings.environment.build_timeout_sec
    result = await sandbox.run_command("bash ./setup.sh", seconds)
    if result.exit_code != 0:
        raise SetupError(failure(f"setup.sh of step '{step.name}' of '{task.name}'", result, seconds))


def ends_task(step: Step, rewards: Rewards) -> bool:
    """Whether the rewards of a step are below its `min_reward`, so that the remaining steps are skipped."""
    least = step.settings.min_reward
    if least is None:
        return False
    limits = least if isinstance(least, dict) else {SCORE: least}
    return any(rewards.get(name, -math.inf) < limit for name, limit in limits.items())


def combined(task: TaskFolder, found: Sequence[Rewards]) -> dict[str, float]:
    """Combine the rewards of the steps into the rewards of the task.

    If the task's `multi_step_reward_strategy` is `final`, return the rewards of the last scored step. Otherwise return
    the mean of each reward over the scored steps; a step without the reward counts as 0.

    Args:
        found: rewards of the scored steps, in order.
    """
    known = found[-1:] if task.settings.multi_step_reward_strategy == "final" else found
    names = dict.fromkeys(name for each in known for name in each)
    return {name: fmean(each.get(name, 0.0) for each in known) for name in names}
