"""Runs the tests of a task after the agent has ended, and reads the reward that they write."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from pydantic import JsonValue

from agentrl.data.task_folders.files import FilesError, folder_members
from agentrl.data.task_folders.folder import TESTS, TaskFolder
from agentrl.data.task_folders.settings import VerifierPart
from agentrl.data.task_folders.steps import Step
from agentrl.sandboxes.base import (
    EndsProcesses,
    RunResult,
    Sandbox,
    SandboxEndedError,
    SandboxFileError,
    SandboxUnavailableError,
)
from agentrl.security.json_depth import parse
from agentrl.task_folders.plan import LOGS, TESTS_IN
from agentrl.task_folders.running import PrepareError, prepare, send_files

SCORE = "reward"
"""Name of the reward if the tests write a single number."""
REWARDS = "/logs/verifier"
MAX_REWARD_BYTES = 2**16
AGENT_LOGS = "/logs/agent"
_EMPTIED = (TESTS_IN, REWARDS)
_OWN = f"chmod u+rwx {LOGS} {TESTS_IN} {REWARDS} 2>/dev/null"
"""Restores the permissions of these folders, because the agent may have changed the permissions."""


class VerifierError(SandboxUnavailableError):
    """The verifier returned no reward, for a reason that does not depend on the policy."""


async def verify(sandbox: Sandbox, task: TaskFolder, step: Step | None = None) -> dict[str, float]:
    """Run the tests of the task, or of one of its steps; return the rewards that they write, by name.

    All processes of the agent are ended first, and `/tests` and `/logs/verifier` are emptied. Only then are the tests
    copied into the sandbox: tests of the task, then tests of the step. The exit code of the tests does not change the
    rewards.

    Raises:
        VerifierError: the tests wrote no reward, an empty reward or a malformed reward, or did not end in time.
        SandboxEndedError: programs in the sandbox ended the sandbox before the tests, or left no room for the tests.
        SandboxUnavailableError: the sandbox failed.
    """
    assert isinstance(sandbox, EndsProcesses)  # true for each kind that has `PoolSettings.setups`
    await sandbox.end_processes()
    try:
        failed = await _send_tests(sandbox, task, step)
    except (SandboxEndedError, FilesError) as error:
        raise VerifierError(f"the verifier of '{_named(task, step)}': {error}") from error
    if failed is not None:
        raise SandboxEndedError(f"the tests of '{_named(task, step)}' cannot be copied: {failed}") from failed
    try:
        settings = task.settings.verifier if step is None else step.settings.verifier
        result = await sandbox.run_command(_command(task, settings), settings.timeout_sec)
        await sandbox.end_processes()
        return await _rewards(sandbox, _named(task, step), result, settings.timeout_sec)
    except (SandboxEndedError, SandboxFileError) as error:
        raise VerifierError(f"the verifier of '{_named(task, step)}': {error}") from error


async def _send_tests(sandbox: Sandbox, task: TaskFolder, step: Step | None) -> Exception | None:
    """Copy the tests; return the error if files or processes of the agent prevent this."""
    try:
        await empty(sandbox, _EMPTIED)
        for folder in (task.path, *(() if step is None else (step.path,))):
            tests = folder_members(folder / TESTS, TESTS_IN)
            await send_files(sandbox, tests, f"copying the tests of '{task.name}'", through=TESTS_IN)
    except (PrepareError, SandboxFileError) as error:
        return error
    return None


async def empty(sandbox: Sandbox, folders: Sequence[str] = (*_EMPTIED, AGENT_LOGS)) -> None:
    """Delete the content of `folders`. They must be empty before the tests run, and before the agent's next step.

    Raises:
        SandboxUnavailableError: a command failed.
    """
    await prepare(sandbox, f"{_OWN}; {'; '.join(map(_emptied, folders))}", f"emptying {' and '.join(folders)}")


def _named(task: TaskFolder, step: Step | None) -> str:
    return task.name if step is None else f"{task.name}, step {step.name}"


def score_of(rewards: Mapping[str, float]) -> float:
    """Return the score: the reward named `reward`, else the mean of all rewards."""
    return rewards[SCORE] if SCORE in rewards else fmean(rewards.values())


def _emptied(folder: str) -> str:
    """Return a command that replaces a folder, or whatever the agent put at its path, with an empty folder."""
    return (
        f"chmod -R u+rwX {folder} 2>/dev/null; rm -rf {folder} 2>/dev/null; mkdir -p {folder};"
        f' [ ! -L {folder} ] && [ -d {folder} ] && [ -z "$(ls -A {folder})" ] || exit 1'
    )


def _command(task: TaskFolder, settings: VerifierPart) -> str:
    env = {**task.settings.verifier.env, **settings.env}
    values = "".join(f"export {name}={shlex.quote(value)}; " for name, value in env.items())
    return f"{values}bash {TESTS_IN}/test.sh"


async def _rewards(sandbox: Sandbox, name_of_task: str, result: RunResult, timeout_s: float) -> dict[str, float]:
    if result.timed_out:
        raise VerifierError(f"the tests of '{name_of_task}' did not end in {timeout_s:g} seconds")
    for name in _READERS:
        try:
            data = await sandbox.download(f"{REWARDS}/{name}")
        except SandboxFileError as error:
            if "no such file" in str(error).lower():
                continue
            raise
        try:
            return read_reward(name, data)
        except ValueError as error:
            raise VerifierError(f"the tests of '{name_of_task}' wrote a wrong {name}: {error}") from None
    said = " ".join(result.output.split())[-300:] or "nothing"
    raise VerifierError(
        f"the tests of '{name_of_task}' wrote no {REWARDS}/reward.txt or reward.json (exit code {result.exit_code},"
        f" output: {said})"
    )


def read_reward(name: str, data: bytes) -> dict[str, float]:
    """Read `reward.json` or `reward.txt`.

    Raises:
        ValueError: the reward is malformed, empty, too large or not finite.
    """
    return _READERS[name](data)


def _of_json(data: bytes) -> dict[str, float]:
    found = parse(_limited(data))
    if not isinstance(found, dict) or not found:
        raise ValueError("expected an object of numbers")
    return {name: _finite(name, value) for name, value in found.items()}


def _of_text(data: bytes) -> dict[str, float]:
    text = _limited(data).decode("utf-8", "replace").strip()
    try:
        return {SCORE: _finite(SCORE, float(text))}
    except ValueError:
        raise ValueError(f"expected one finite number, found '{text[:100]}'") from None


def _limited(data: bytes) -> bytes:
    if not data:
        raise ValueError("the file is empty")
    if len(data) > MAX_REWARD_BYTES:
        raise ValueError(f"it has {len(data)} bytes, at most {MAX_REWARD_BYTES} are read")
    return data


def _finite(name: str, value: JsonValue) -> float:
    if not isinstance(value, int | float):  # true is 1, as in Harbor
        raise ValueError(f"'{name}' is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"'{name}' is not finite")
    return number


_READERS: Mapping[str, Callable[[bytes], dict[str, float]]] = {"reward.json": _of_json, "reward.txt": _of_text}
"""Name of a file with the reward -> function that reads it. If several files exist, the first one counts."""
