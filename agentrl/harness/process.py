"""A running harness: its process, its bounded output, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from agentrl.harness.places import PORT, Place
from agentrl.sandboxes.inside.interpreter import Output
from agentrl.security.json_depth import parse
from agentrl.tools.base import InfraError

MAX_OUTPUT_BYTES = 20_000
"""Bytes of the output that are kept: half from its start, half from its end."""
_CHUNK = 2**16
_PAUSE_S = 0.01
"""Pause after a full chunk of output, so that endless output costs little CPU time."""
_REST_S = 0.5
"""Seconds to read the rest of the output after the harness has ended."""
_END_S = 5.0
"""Seconds within which the supervisor (supervisor.py) must end a harness that runs without namespaces."""
_MAX_REPORT_BYTES = 2**16
_BOOTSTRAP = """
import json, os, sys
line = bytearray()
while not line.endswith(b"\\n"):
    line += os.read(0, 65536) or sys.exit(1)
job, names = json.loads(line), {"__name__": "supervisor"}
exec(job["source"], names)
names["main"](job)
"""
"""Program that reads the job, which contains the supervisor's source, from standard input.

The job is not an argument, because arguments appear in process lists.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """Command to run in a place, with its environment, files and standard input."""

    command: Sequence[str]
    env: Mapping[str, str]
    files: Mapping[str, str]
    stdin: str = ""

    def values(self) -> dict[str, JsonValue]:
        """Return the job in the form that the supervisor reads.

        Keys that depend on the place have an empty value or are missing; the caller sets these keys.
        """
        files: dict[str, JsonValue] = {**self.files}
        return {
            "command": [*self.command],
            "env": {**self.env},
            "files": files,
            "stdin": self.stdin,
            "template": None,
            "folder": "",
            "limits": {},
            "watched": [],
            "inherits": False,
            "mark": "",
        }


@dataclass(frozen=True, slots=True)
class Ended:
    """How a harness ended.

    Attributes:
        exit_code: exit code of the command, 128 + n after signal n; None if the harness was stopped, did not start,
            or ended without a report.
        output: start and end of the harness's output.
        failed: why the harness did not start; "" if it started.
        missing: whether the command does not exist, or is not a program.
    """

    exit_code: int | None
    output: str
    failed: str = ""
    missing: bool = False


class HarnessProcess:
    """The process of one harness."""

    def __init__(self, process: asyncio.subprocess.Process, place: Place, status: int) -> None:
        self._process, self._place, self._status = process, place, status
        self._output = Output(MAX_OUTPUT_BYTES)
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, place: Place, job: Job) -> HarnessProcess:
        """Start a harness.

        Raises:
            InfraError: this machine cannot start another process.
        """
        status, writing = os.pipe()
        line = place.enclose([place.python, "-I", "-S", "-c", _BOOTSTRAP, str(writing)])
        try:
            process = await asyncio.create_subprocess_exec(
                *line,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={},
                pass_fds=(writing, *place.descriptors),
                start_new_session=True,
                user=place.user,
                group=place.group,
                extra_groups=None if place.user is None else [],
            )
        except OSError as error:
            os.close(status)
            raise InfraError(f"a harness cannot start: {error}") from error
        finally:
            for descriptor in (writing, *place.descriptors):
                os.close(descriptor)
        started = cls(process, place, status)
        started._send(job)
        return started

    async def wait(self) -> Ended:
        """Wait until the harness ends by itself."""
        await self._process.wait()
        await asyncio.wait({self._reading}, timeout=_REST_S)
        return self._ended()

    @property
    def output(self) -> str:
        """Start and end of the output so far."""
        return self._output.text()

    def lose(self) -> None:
        """Close the supervisor's input, so that the supervisor ends all processes.

        The input also closes if this process ends.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def end(self) -> Ended:
        """Stop the harness and all processes that it started, and return how it ended."""
        self.lose()
        if self._place.contained or not await self._ended_within(_END_S):
            self._signal(signal.SIGKILL)
        await self._process.wait()
        await asyncio.wait({self._reading}, timeout=_REST_S)
        return Ended(None, self.output)

    async def close(self) -> None:
        """Free all resources; the harness is stopped first if it still runs."""
        try:
            if self._process.returncode is None:
                await self.end()
        finally:
            # the supervisor ends all processes, but the harness may have killed the supervisor
            if not self._place.contained:
                self._signal(signal.SIGKILL)
            self._reading.cancel()
            # without this, the pipes stay open if another process has inherited them
            getattr(self._process, "_transport").close()  # noqa: B009  # no public way
            os.close(self._status)

    def _send(self, job: Job) -> None:
        place, stdin = self._place, self._process.stdin
        assert stdin is not None
        values = {
            **job.values(),
            "source": supervisor_source(),
            "home": place.home,
            "workdir": place.workdir,
            "template": place.template,
            "folder": str(place.folder) if place.folder else "",
            "socket": place.socket,
            "port": PORT,
            "limits": dict(place.limits),
            "watched": [0],
        }
        stdin.write(json.dumps(values).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(_CHUNK):
            self._output.add(data)
            if len(data) == _CHUNK:
                await asyncio.sleep(_PAUSE_S)

    async def _ended_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _ended(self) -> Ended:
        """Read the report. The report is not trusted, because the harness could have written it."""
        return ended_of(_read_report(self._status), self.output)


def ended_of(report: Mapping[str, object], output: str) -> Ended:
    """Return how a harness ended, from the report of its supervisor."""
    code = report.get("exit_code")
    if isinstance(code, int):
        return Ended(code, output)
    failed = report.get("failed")
    return Ended(None, output, str(failed)[:500] if failed else "", report.get("missing") is True)


def _read_report(status: int) -> Mapping[str, object]:
    os.set_blocking(status, False)
    try:
        found = parse(os.read(status, _MAX_REPORT_BYTES))
    except (BlockingIOError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@cache
def supervisor_source() -> str:
    """Return the source of the program that starts a harness and ends all processes that the harness started."""
    return Path(__file__).with_name("supervisor.py").read_text(encoding="utf-8")
