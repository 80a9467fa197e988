"""A sandbox of E2B for a task: programs in the sandbox run as root, and all of its processes can be ended."""

from __future__ import annotations

import asyncio
import json
import shlex
from contextlib import suppress
from secrets import token_hex

from e2b import CommandExitException

from agentrl.sandboxes.base import RunResult, SandboxEndedError, SandboxSetup, SandboxUnavailableError
from agentrl.sandboxes.e2b.calls import within
from agentrl.sandboxes.e2b.output import Output
from agentrl.sandboxes.e2b.sandbox import GRACE_S, CodeInterpreter, E2BSandboxSession, limited

END_S = 30.0
"""Seconds to create the folders, or to end the processes."""
_MARK = "AGENTRL_RUN"
_PROCESSES = """
import json, os, signal, sys, time
known, mark = json.loads(sys.argv[1]), sys.argv[2].encode()
def found():
    own, above = set(), os.getpid()
    while above > 1:
        own.add(above)
        above = int(open(f"/proc/{above}/stat").read().rpartition(")")[2].split()[1])
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
            marked = not mark or mark in open(f"/proc/{name}/environ", "rb").read().split(b"\\0")
        except OSError:
            continue
        of_kernel = int(fields[6]) & 0x200000
        if fields[0] not in "ZX" and not of_kernel and int(name) not in own and marked:
            yield int(name), int(fields[19])
if known is None:
    print(json.dumps(list(found())))
    sys.exit()
for _ in range(2000):
    left = [each for each in found() if [*each] not in known]
    if not left:
        sys.exit()
    for number, _ in left:
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.002)
sys.exit(1)
"""
"""Program that lists processes, or kills all processes that are not in the list `known`.

If `mark` is not empty, only processes whose environment contains `mark` are listed or killed. The program ignores
itself, its ancestors and processes of the kernel.
"""


class E2BTaskSession(E2BSandboxSession):
    """See `EndsProcesses`."""

    def __init__(self, client: CodeInterpreter, lifetime_s: float, setup: SandboxSetup) -> None:
        super().__init__(client, lifetime_s)
        self._folder, self._folders = setup.folder or "/", setup.folders
        self._as_user, self._with_env = {"user": "root"}, {"envs": dict(setup.env)}
        self._known: list[list[int]] = []
        self._mark = ""
        self._stopping: asyncio.Future[int] | None = None

    async def prepare(self) -> None:
        """Create the folders, and record the sandbox's own processes, which are not killed later.

        Raises:
            SandboxUnavailableError: the preparation failed.
        """
        output = Output()
        folders = " ".join(map(shlex.quote, ("/tmp", self._folder, *self._folders)))
        code = await self._own(f"mkdir -p {folders} && {_processes(None)}", output)
        try:
            found = json.loads(output.text())
            self._known = [[int(number), int(start)] for number, start in found]
        except (ValueError, TypeError):
            code = code or 1
        if code != 0:
            raise SandboxUnavailableError(f"the E2B sandbox {self.id} cannot run tasks: {output.text()[-300:]}")

    async def run_command(self, command: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_command`."""
        self._mark = f"{_MARK}={token_hex(8)}"
        return await super().run_command(command, deadline_s)

    async def end_processes(self) -> None:
        """See `EndsProcesses.end_processes`.

        Raises:
            SandboxUnavailableError: the processes did not end, or the sandbox failed.
        """
        async with self._using:
            self._check()
            if self._context is not None:  # otherwise the server would restart a killed interpreter
                with suppress(SandboxEndedError, SandboxUnavailableError):  # remaining processes are killed below
                    await self._drop_context()
            output = Output()
            if await self._own(_processes(self._known), output) != 0:
                said = output.text()[-300:]
                raise SandboxUnavailableError(f"the processes of the E2B sandbox {self.id} did not end: {said}")

    def stop_command(self) -> None:
        """See `EndsProcesses.stop_command`."""
        if self._mark and not self._ended and (self._stopping is None or self._stopping.done()):
            self._stopping = asyncio.ensure_future(self._stop(self._mark))

    async def kill(self) -> None:
        """See `Sandbox.kill`."""
        if self._stopping is not None:
            self._stopping.cancel()
            await asyncio.wait({self._stopping})
        await super().kill()

    def _limited(self, command: str, seconds: float) -> str:
        return limited(command, seconds, self._mark)

    async def _stop(self, mark: str) -> int:
        with suppress(SandboxUnavailableError):  # `stop_command` is called again
            return await self._own(_processes([], mark), Output())
        return 1

    async def _own(self, command: str, output: Output) -> int:
        """Run a command of agentrl; return its exit code.

        Raises:
            SandboxUnavailableError: the sandbox failed.
        """
        run = self._client.commands.run(
            *(command, False), cwd="/", user="root", on_stdout=output.add, on_stderr=output.add, timeout=END_S + GRACE_S
        )
        try:
            await within(END_S, run)
        except CommandExitException as error:
            return int(error.exit_code)
        except Exception as error:  # the library lets errors of httpx and its own parser through
            raise await self._unavailable(error) from error
        return 0

    async def _unavailable(self, error: Exception) -> SandboxUnavailableError:
        failure = await self._failure(error)
        return failure if isinstance(failure, SandboxUnavailableError) else SandboxUnavailableError(str(failure))


def _processes(known: list[list[int]] | None, mark: str = "") -> str:
    return f"python3 -I -c {shlex.quote(_PROCESSES)} {shlex.quote(json.dumps(known))} {shlex.quote(mark)}"
