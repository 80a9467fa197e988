"""A sandbox that runs the program of `agentrl.sandboxes.inside`, reached through the pipes of a local process."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex

from pydantic import JsonValue

from agentrl.sandboxes.base import (
    CANCELLED,
    MAX_FILE_BYTES,
    MAX_OUTPUT_CHARS,
    RunResult,
    SandboxEndedError,
    SandboxFileError,
    SandboxUnavailableError,
    shortened,
)
from agentrl.security.json_depth import parse

FILE_S = 30.0
"""Seconds to read or write a file."""
GRACE_S = 5.0
"""Seconds after a deadline until the sandbox itself is killed. The program in it should stop the code before that."""
WRITABLE = ("/work", "/tmp")
"""Folders in memory that every sandbox can write."""
STDERR_S = 2.0
_STOP = b'{"kind": "stop"}\n'
LINE_BYTES = 2 * MAX_FILE_BYTES
"""Maximum bytes of a line in the output of the process. A reply is one line."""


class ProcessSandbox:
    """See `Sandbox`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._descriptor: int | None = None
        with suppress(ProcessLookupError):  # the process has ended
            self._descriptor = os.pidfd_open(process.pid)  # unlike a process id, never refers to another process
        self._asking = asyncio.Lock()
        self._ended = self._cancelled = False

    async def wait_until_ready(self, seconds: float) -> None:
        """Wait until the program answers.

        Raises:
            SandboxUnavailableError: the program ended or does not answer; the message contains its standard error.
        """
        said = "it was not ready in time"
        try:
            async with asyncio.timeout(seconds):
                await self._reply("ready")
                return
        except SandboxEndedError:
            said = await self.standard_error()
        except TimeoutError:
            pass
        except BaseException:
            await self.kill()
            raise
        await self.kill()
        raise SandboxUnavailableError(f"a sandbox did not start: {said}")

    async def standard_error(self) -> str:
        """Read the standard error of the process, which is about to end; return its beginning as one line."""
        assert self._process.stderr is not None
        found = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(STDERR_S):
                found = await self._process.stderr.read(2000)
        return " ".join(found.decode("utf-8", "replace").split()) or "without a message"

    async def run_python(self, code: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_python`."""
        return read_result(await self._ask("python", deadline_s, text=code, seconds=deadline_s))

    async def run_command(self, command: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_command`."""
        return read_result(await self._ask("command", deadline_s, text=command, seconds=deadline_s))

    async def upload(self, path: str, data: bytes) -> None:
        """See `Sandbox.upload`."""
        check_size(path, data)
        _check_file(await self._ask("write", FILE_S, path=path, data=base64.b64encode(data).decode()))

    async def download(self, path: str) -> bytes:
        """See `Sandbox.download`."""
        reply = await self._ask("read", FILE_S, path=path, most=MAX_FILE_BYTES)
        _check_file(reply)
        try:
            return base64.b64decode(str(reply.get("data", "")), validate=True)[:MAX_FILE_BYTES]
        except ValueError:
            raise SandboxFileError(f"the sandbox returned no valid content for the file: {path}") from None

    async def end_processes(self) -> None:
        """See `EndsProcesses.end_processes`. A sandbox whose processes do not end is killed."""
        reply = await self._ask("end", FILE_S)
        if reply.get("left") != 0:
            raise await self._end("the processes of the sandbox did not end, and it was killed")

    def stop_command(self) -> None:
        """See `EndsProcesses.stop_command`."""
        if self._process.stdin is not None and not self._ended:
            self._process.stdin.write(_STOP)

    async def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.kill_process()
        await self._process.wait()

    def kill_process(self) -> None:
        """Kill the process without waiting for its end."""
        self._ended = True
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)

    async def _ask(self, kind: str, deadline_s: float, **request: JsonValue) -> Mapping[str, JsonValue]:
        number = token_hex(8)
        line = json.dumps({"id": number, "kind": kind, **request}).encode() + b"\n"
        async with self._asking:
            if self._cancelled:
                raise SandboxUnavailableError(CANCELLED)
            if self._ended:
                raise SandboxEndedError("the sandbox has ended")
            try:
                async with asyncio.timeout(deadline_s + GRACE_S):
                    assert self._process.stdin is not None
                    self._process.stdin.write(line)
                    await self._process.stdin.drain()
                    return await self._reply(number)
            except TimeoutError:
                failure = await self._end("the sandbox did not answer and was killed")
            except (ConnectionError, SandboxEndedError):
                failure = await self._end("the sandbox ended")
            except asyncio.CancelledError:
                self._cancelled = not self._ended
                await self.kill()  # the call may still run in the sandbox
                raise
            raise failure

    async def _end(self, reason: str) -> SandboxEndedError | SandboxUnavailableError:
        """Kill the sandbox; return the error to raise for the failed call."""
        await self.kill()
        return SandboxEndedError(reason)

    async def _reply(self, number: str) -> Mapping[str, JsonValue]:
        """Read a reply. The reply is not trusted, because any program in the sandbox could have written it."""
        assert self._process.stdout is not None
        try:
            reply = parse(await self._process.stdout.readline())
        except ValueError:  # also raised for a line that is too long
            reply = None
        if not isinstance(reply, dict) or reply.get("id") != number:
            raise SandboxEndedError("the sandbox ended")
        return reply


@cache
def program(last: str = "server") -> str:
    """Return source code that defines the functions of `agentrl.sandboxes.inside`.

    Args:
        last: the module that is executed last: `server` or `single_request`.
    """
    folder = Path(__file__).with_name("inside")
    sources = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in ("interpreter", "actions", last)]
    return f"names = {{'__name__': 'inside'}}\nfor source in {sources!r}:\n    exec(source, names)\n"


def arguments(limits: Mapping[str, int], writable: Sequence[str] = WRITABLE) -> list[str]:
    """Return the command-line arguments with which Python runs the program of `agentrl.sandboxes.inside`.

    Args:
        limits: name of a resource -> limit of each process; see setrlimit(2).
        writable: folders in which the number of files is limited.
    """
    settings = {"limits": dict(limits), "output": MAX_OUTPUT_CHARS, "writable": [*writable]}
    return ["-I", "-c", f"{program()}names['serve']({settings!r})"]


def read_result(reply: Mapping[str, JsonValue]) -> RunResult:
    """Read the reply to a request to run code or a command. The reply is not trusted."""
    code = reply.get("exit_code")
    return RunResult(
        shortened(_text(reply.get("output"))),
        shortened(_text(reply.get("error"))),
        code if isinstance(code, int) else None,
        reply.get("timed_out") is True,
        reply.get("state_lost") is True,
    )


def check_size(path: str, data: bytes) -> None:
    """Refuse to write a file that is too large.

    Raises:
        SandboxFileError: the file has more than `MAX_FILE_BYTES`.
    """
    if len(data) > MAX_FILE_BYTES:
        raise SandboxFileError(f"the file has {len(data)} bytes, at most {MAX_FILE_BYTES} can be written: {path}")


def _text(value: JsonValue) -> str:
    """Return a value as text. Lone surrogates, which UTF-8 cannot encode, become question marks."""
    return str(value or "").encode("utf-8", "replace").decode()


def _check_file(reply: Mapping[str, JsonValue]) -> None:
    if failed := reply.get("failed"):
        raise SandboxFileError(shortened(_text(failed), 500))
