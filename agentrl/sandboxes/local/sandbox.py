"""A sandbox on this machine: a bubblewrap process with `inside.py` in it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from secrets import token_hex

from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import (
    MAX_FILE_BYTES,
    MAX_OUTPUT_CHARS,
    RunResult,
    SandboxEndedError,
    SandboxFileError,
    SandboxUnavailableError,
    shortened,
)
from agentrl.sandboxes.local.bubblewrap import command, interpreter, new_user
from agentrl.sandboxes.local.probe import check_isolation
from agentrl.sandboxes.local.seccomp import filter_descriptor
from agentrl.sandboxes.local.settings import LocalSandbox
from agentrl.security.json_depth import parse

START_S = 30.0
GRACE_S = 5.0
"""Seconds after a deadline until the sandbox itself is killed. Until then the program in it stops the code."""
_LINE_BYTES = 2 * MAX_FILE_BYTES


class LocalProvider:
    """See `SandboxProvider`."""

    def __init__(self, settings: LocalSandbox) -> None:
        self._settings = settings

    async def check(self) -> None:
        """See `SandboxProvider.check`: a sandbox is started and tries what it must not be able to do."""
        try:
            sandbox = await self.start()
        except SandboxUnavailableError as error:
            raise ConfigError.keyless(f"{error} (docs/sandboxes.md)") from error
        try:
            await check_isolation(sandbox, self._settings)
        finally:
            await sandbox.kill()

    async def start(self) -> LocalSandboxProcess:
        """See `SandboxProvider.start`."""
        return await LocalSandboxProcess.start(self._settings)

    async def close(self) -> None:
        """See `SandboxProvider.close`: the sandboxes of a process end with it."""


class LocalSandboxProcess:
    """See `Sandbox`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._descriptor: int | None = None
        with suppress(ProcessLookupError):  # it has ended
            self._descriptor = os.pidfd_open(process.pid)  # unlike the number, it never means another process
        self._asking = asyncio.Lock()
        self._ended = False

    @classmethod
    async def start(cls, settings: LocalSandbox) -> LocalSandboxProcess:
        """Start bubblewrap, and wait until the program in it is ready."""
        options = json.dumps({"limits": settings.limits(), "output": MAX_OUTPUT_CHARS})
        program = [str(interpreter(settings.python)), "-I", "-c", _program(), options]
        seccomp, user = filter_descriptor(), new_user()
        try:
            process = await asyncio.create_subprocess_exec(
                *command(settings, seccomp, program),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={},
                pass_fds=(seccomp,),
                start_new_session=True,
                limit=_LINE_BYTES,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        except OSError as error:
            raise SandboxUnavailableError(f"a sandbox cannot start: {error}") from error
        finally:
            os.close(seccomp)
        sandbox = cls(process)
        try:
            async with asyncio.timeout(START_S):
                await sandbox._reply("ready")
        except BaseException as error:
            await sandbox.kill()
            if not isinstance(error, SandboxEndedError | TimeoutError):
                raise
            assert process.stderr is not None
            said = " ".join((await process.stderr.read(2000)).decode("utf-8", "replace").split())
            raise SandboxUnavailableError(f"a sandbox did not start: {said or 'it was not ready in time'}") from error
        return sandbox

    async def run_python(self, code: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_python`."""
        return _result(await self._ask("python", deadline_s, text=code, seconds=deadline_s))

    async def run_command(self, command: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_command`."""
        return _result(await self._ask("command", deadline_s, text=command, seconds=deadline_s))

    async def upload(self, path: str, data: bytes) -> None:
        """See `Sandbox.upload`."""
        if len(data) > MAX_FILE_BYTES:
            raise SandboxFileError(f"the file has {len(data)} bytes, at most {MAX_FILE_BYTES} can be written: {path}")
        _check_file(await self._ask("write", START_S, path=path, data=base64.b64encode(data).decode()))

    async def download(self, path: str) -> bytes:
        """See `Sandbox.download`."""
        reply = await self._ask("read", START_S, path=path, most=MAX_FILE_BYTES)
        _check_file(reply)
        try:
            return base64.b64decode(str(reply.get("data", "")), validate=True)[:MAX_FILE_BYTES]
        except ValueError:
            raise SandboxFileError(f"the sandbox gave no file: {path}") from None

    async def kill(self) -> None:
        """See `Sandbox.kill`: the process namespace ends with bubblewrap."""
        self._ended = True
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        await self._process.wait()

    async def _ask(self, kind: str, deadline_s: float, **request: JsonValue) -> Mapping[str, JsonValue]:
        number = token_hex(8)
        line = json.dumps({"id": number, "kind": kind, **request}).encode() + b"\n"
        async with self._asking:
            if self._ended:
                raise SandboxEndedError("the sandbox has ended")
            try:
                async with asyncio.timeout(deadline_s + GRACE_S):
                    assert self._process.stdin is not None
                    self._process.stdin.write(line)
                    await self._process.stdin.drain()
                    return await self._reply(number)
            except TimeoutError:
                await self.kill()
                raise SandboxEndedError("the sandbox did not answer and was killed") from None
            except (ConnectionError, asyncio.CancelledError, SandboxEndedError) as error:
                await self.kill()  # a cancelled call may still run in it
                if isinstance(error, ConnectionError):
                    raise SandboxEndedError("the sandbox ended") from error
                raise

    async def _reply(self, number: str) -> Mapping[str, JsonValue]:
        """Read a reply. What ran in the sandbox could have written it, so nothing in it is trusted."""
        assert self._process.stdout is not None
        try:
            reply = parse(await self._process.stdout.readline())
        except ValueError:  # also a line that is too long
            reply = None
        if not isinstance(reply, dict) or reply.get("id") != number:
            raise SandboxEndedError("the sandbox ended")
        return reply


@cache
def _program() -> str:
    return files("agentrl.sandboxes.local").joinpath("inside.py").read_text(encoding="utf-8")


def _result(reply: Mapping[str, JsonValue]) -> RunResult:
    code = reply.get("exit_code")
    return RunResult(
        shortened(_text(reply.get("output"))),
        shortened(_text(reply.get("error"))),
        code if isinstance(code, int) else None,
        reply.get("timed_out") is True,
        reply.get("state_lost") is True,
    )


def _text(value: JsonValue) -> str:
    """Lone surrogates, which JSON can have and UTF-8 cannot, become question marks."""
    return str(value or "").encode("utf-8", "replace").decode()


def _check_file(reply: Mapping[str, JsonValue]) -> None:
    if failed := reply.get("failed"):
        raise SandboxFileError(shortened(_text(failed), 500))
