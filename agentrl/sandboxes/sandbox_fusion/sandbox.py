"""A sandbox on a server that keeps nothing between calls: every call sends all files, and variables are lost."""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from secrets import token_hex

from aiohttp import ClientSession
from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import (
    MAX_OUTPUT_CHARS,
    RunResult,
    SandboxEndedError,
    SandboxFileError,
    SandboxSetup,
    SandboxUnavailableError,
    shortened,
)
from agentrl.sandboxes.process import GRACE_S, program, read_result
from agentrl.sandboxes.programs import ProgramRun
from agentrl.sandboxes.sandbox_fusion.client import FusionClient, FusionProgram, FusionRun
from agentrl.sandboxes.sandbox_fusion.settings import FusionSandbox
from agentrl.security.json_depth import parse
from agentrl.utils.http_client import open_session

MAX_FILES_BYTES = 8 * 2**20
"""Maximum total size of the files of a sandbox and of their paths."""


class FusionProvider:
    """See `SandboxProvider`."""

    def __init__(self, settings: FusionSandbox) -> None:
        self._client = FusionClient(settings.address(), settings.memory_mb, settings.max_concurrent)

    async def check(self) -> None:
        """See `SandboxProvider.check`: the server must answer. Isolation depends on the server's configuration."""
        async with open_session() as session:
            try:
                await self._client.check(session)
            except SandboxUnavailableError as error:
                raise ConfigError.keyless(f"{error} (docs/sandboxes.md)") from error

    async def start(self, setup: SandboxSetup | None = None) -> FusionFiles:
        """See `SandboxProvider.start`. Nothing starts on the server."""
        assert setup is None  # only kinds with `PoolSettings.setups` get a setup
        return FusionFiles(self._client, open_session())

    async def close(self) -> None:
        """See `SandboxProvider.close`. Nothing is left on the server."""


class FusionFiles:
    """See `Sandbox`. The files of the working folder are kept in this object. Only regular files are kept."""

    def __init__(self, client: FusionClient, session: ClientSession) -> None:
        self._client, self._session = client, session
        self._files: Mapping[str, bytes] = {}

    async def run_python(self, code: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_python`; variables are not kept."""
        return await self._run("python", code, deadline_s)

    async def run_command(self, command: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_command`."""
        return await self._run("command", command, deadline_s)

    async def upload(self, path: str, data: bytes) -> None:
        """See `Sandbox.upload`."""
        self._keep({**self._files, _inside(path): data})

    async def download(self, path: str) -> bytes:
        """See `Sandbox.download`."""
        if (found := self._files.get(_inside(path))) is None:
            raise SandboxFileError(f"no such file: {path}")
        return found

    async def run_program(self, code: str, stdin: str, deadline_s: float, language: str) -> ProgramRun:
        """See `RunsPrograms`."""
        run = await self._client.run(self._session, FusionProgram(code, stdin, language, deadline_s))
        return ProgramRun(run.ok, run.compiled, run.stdout)

    async def kill(self) -> None:
        """See `Sandbox.kill`."""
        await self._session.close()

    async def _run(self, kind: str, text: str, seconds: float) -> RunResult:
        if self._session.closed:
            raise SandboxEndedError("the sandbox has ended")
        reply_file = f".agentrl-{token_hex(8)}"
        request: dict[str, JsonValue] = {"kind": kind, "text": text, "seconds": seconds}
        arguments = f"{request!r}, {MAX_OUTPUT_CHARS}, {reply_file!r}, {MAX_FILES_BYTES}"
        code = f"{program('single_request')}names['once']({arguments})\n"
        sent = FusionProgram(code, "", "python", seconds + GRACE_S, self._files, (reply_file,))
        run = await self._client.run(self._session, sent)
        reply = _reply(run.files.get(reply_file))
        return _without_reply(run) if reply is None else self._result(reply)

    def _result(self, reply: Mapping[str, JsonValue]) -> RunResult:
        result = read_result(reply)
        try:
            self._keep(_files(reply.get("files")))
        except SandboxFileError as error:
            return replace(result, output=f"{result.output}\n[changes of files are lost: {error}]")
        return result

    def _keep(self, files: Mapping[str, bytes]) -> None:
        if sum(len(path) + len(data) for path, data in files.items()) > MAX_FILES_BYTES:
            raise SandboxFileError(f"all files together have more than {MAX_FILES_BYTES} bytes")
        self._files = files


def _inside(path: str) -> str:
    found = posixpath.normpath(path)
    if found.startswith(("/", "..")) or found == "." or "\0" in found:
        raise SandboxFileError(f"the path must be in the working folder: {path}")
    return found


def _reply(data: bytes | None) -> Mapping[str, JsonValue] | None:
    """Return the reply; None if it is not valid. It is not trusted, because the code in the sandbox can write it."""
    try:
        found = parse(data or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _files(found: JsonValue) -> Mapping[str, bytes]:
    if not isinstance(found, dict):
        raise SandboxFileError(f"all files together have more than {MAX_FILES_BYTES} bytes")
    try:
        return {_inside(path): base64.b64decode(str(content), validate=True) for path, content in found.items()}
    except ValueError:
        raise SandboxFileError("the files in the reply cannot be read") from None


def _without_reply(run: FusionRun) -> RunResult:
    """Return the result if there is no reply: the code killed the program that runs it, or both were stopped."""
    output = shortened(run.stdout + run.stderr)
    if run.timed_out:
        return RunResult(output, timed_out=True)
    return RunResult(output, error="the process of the code was killed; changes of files are lost")
