"""Runs the command of a harness in the sandbox of the rollout's task folder."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex

from pydantic import JsonValue

from agentrl.errors import DataError
from agentrl.harness.process import Ended, ended_of, supervisor_source
from agentrl.sandboxes.base import RunResult
from agentrl.sandboxes.local.bubblewrap import python_of
from agentrl.sandboxes.local.settings import LocalSandbox
from agentrl.sandboxes.running import RunningCall
from agentrl.security.json_depth import parse
from agentrl.task_folders.plan import TESTS_IN
from agentrl.tools.task_folders import TaskFolderState

HOME = "/tmp/home"
SOCKET_FOLDER = "/run/agentrl"
PORT = 48_620
"""Port of the gateway in the sandbox. Tasks should use other ports."""
_LONGEST_S = 1e7
"""Timeout of the command in seconds: the sandbox requires a timeout, but the harness's deadline comes earlier."""
_BOOTSTRAP = """
import json, os, sys
with open(sys.argv[1]) as file:
    job = json.load(file)
os.unlink(sys.argv[1])
sys.argv[1] = str(os.dup(1))
names = {"__name__": "supervisor"}
exec(job["source"], names)
names["main"](job)
"""
"""Program that reads the job from a file, and deletes the file before the harness starts."""


class TaskHarness:
    """A harness that runs in the sandbox of a task folder; see `agentrl.harness.process.HarnessProcess`."""

    def __init__(self, running: RunningCall[RunResult], mark: str) -> None:
        self._running, self._mark = running, mark

    async def wait(self) -> Ended:
        """Wait until the harness ends by itself.

        Raises:
            SandboxEndedError: a process in the sandbox ended the sandbox.
            SandboxUnavailableError: the sandbox failed.
        """
        return self._ended(await self._running.wait())

    async def end(self) -> Ended:
        """Stop the harness, and return how it ended. All processes that it started end before the tests run."""
        result = await self._running.end()
        return Ended(None, "" if result is None else self._ended(result).output)

    def _ended(self, result: RunResult) -> Ended:
        """Read the report, which follows `_mark` in the output.

        The harness does not know this mark, so it cannot forge a report.
        """
        output, found, report = result.output.rpartition(self._mark)
        if not found:
            return Ended(None, result.output)
        try:
            values = parse(report.encode())
        except ValueError:
            values = None
        return ended_of(values if isinstance(values, dict) else {}, output)


def local_settings(folder: TaskFolderState) -> LocalSandbox:
    """Return the settings of the sandbox.

    Raises:
        DataError: the sandboxes of the run are of a kind that cannot reach the gateway.
    """
    if isinstance(folder.sandboxes, LocalSandbox):
        return folder.sandboxes
    raise DataError(
        f"'sandbox: task' of the harness: the tools of the run have a sandbox of kind '{folder.sandboxes.kind}',"
        " but the command of a harness runs only in a sandbox of kind 'local'"
    )


@asynccontextmanager
async def started_in_task(
    folder: TaskFolderState, gateway: Path, job: Mapping[str, JsonValue]
) -> AsyncIterator[TaskHarness]:
    """Yield the harness, which is stopped at the end of the block. The sandbox is kept for the tests.

    Args:
        gateway: socket of the gateway.

    Raises:
        SandboxEndedError: files or processes of the model leave no room in the sandbox for the job.
        SandboxUnavailableError: the sandbox failed.
    """
    python, mark, file = python_of(local_settings(folder)), f"\n{token_hex(16)} ", f"{TESTS_IN}/.agentrl-{token_hex(8)}"
    values = {
        **job,
        "source": supervisor_source(),
        "home": HOME,
        "workdir": folder.workdir,
        "socket": f"{SOCKET_FOLDER}/{gateway.name}",
        "port": PORT,
        "mark": mark,
    }
    await folder.upload(file, json.dumps(values).encode())
    line = f"exec {python} -I -S -c '{_BOOTSTRAP}' {file}"
    async with folder.running_command(line, _LONGEST_S) as running:
        yield TaskHarness(running, mark)
