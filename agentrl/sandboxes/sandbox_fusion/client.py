"""Client of a Sandbox Fusion server, which runs programs (`/run_code`, https://github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import orjson
from aiohttp import ClientSession

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import SandboxUnavailableError
from agentrl.utils.http_client import HttpAnswer, request
from agentrl.utils.retries import GaveUpError, Retries, TryAgainError, raise_if_busy

Result = TypeVar("Result")

_NUM_TRIES = 4
_MARGIN_S = 20.0
"""Seconds added to the program's timeouts, because a program may wait in the server's queue."""
_PING_S = 10.0


@dataclass(frozen=True, slots=True)
class FusionProgram:
    """A program with its timeout and files.

    Attributes:
        seconds: timeout of the run, and also of the compilation.
        files: path in the working folder -> content.
        fetched: paths of files to return after the run.
    """

    code: str
    stdin: str
    language: str
    seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetched: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class FusionRun:
    """Result of a program.

    Attributes:
        ok: whether the program ended with exit status 0.
        compiled: whether the program could be compiled.
        exit_code: None if the program timed out or did not run.
        files: path -> content of the files in `fetched` that exist.
    """

    ok: bool
    compiled: bool
    stdout: str
    stderr: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)


class FusionClient:
    """Client of one server.

    Args:
        address: address of the server.
        max_concurrent: maximum number of programs sent at a time; further programs wait.
    """

    def __init__(self, address: str, memory_mb: int, max_concurrent: int) -> None:
        self._address, self._memory_mb = address, memory_mb
        self._url = f"{address}/run_code"
        self._retries = Retries(_NUM_TRIES, max_concurrent)

    async def check(self, session: ClientSession) -> None:
        """Check that a server answers; a server without `/v1/ping` passes too.

        Raises:
            SandboxUnavailableError: all tries failed.
        """
        url = f"{self._address}/v1/ping"
        await self._tried(lambda: self._answer(session, "GET", url, None, _PING_S), b"")

    async def run(self, session: ClientSession, program: FusionProgram) -> FusionRun:
        """Run a program. The request is retried if the server is busy, fails or cannot be reached.

        Raises:
            SandboxUnavailableError: all tries failed.
            ConfigError: the server rejects the request.
        """
        body = orjson.dumps(
            {
                "code": _encodable(program.code),
                "stdin": _encodable(program.stdin),
                "language": program.language,
                "compile_timeout": program.seconds,
                "run_timeout": program.seconds,
                "memory_limit_MB": self._memory_mb,
                "files": {path: base64.b64encode(data).decode() for path, data in program.files.items()},
                "fetch_files": [*program.fetched],
            }
        )
        return await self._tried(lambda: self._try(session, body, 2 * program.seconds + _MARGIN_S), body)

    async def _tried(self, attempt: Callable[[], Awaitable[Result]], body: bytes) -> Result:
        try:
            return await self._retries.run(attempt, body)
        except GaveUpError as error:
            raise SandboxUnavailableError(f"the sandbox {self._url} failed: {error}") from error

    async def _try(self, session: ClientSession, body: bytes, seconds: float) -> FusionRun:
        answer = await self._answer(session, "POST", self._url, body, seconds)
        if answer.status >= 400:
            raise ConfigError.keyless(f"{self._url} answers {answer.status} {answer.excerpt(300)}")
        return _read(_object(answer.content))

    async def _answer(
        self, session: ClientSession, method: str, url: str, body: bytes | None, seconds: float
    ) -> HttpAnswer:
        answer = await request(session, method, url, body, seconds)
        raise_if_busy(answer.status, answer.headers, f"status {answer.status}")
        return answer


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode; texts of models and of rows may contain lone surrogates."""
    return text.encode(errors="replace").decode()


def _object(content: bytes) -> Mapping[str, object]:
    try:
        answer = orjson.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise TryAgainError(f"the answer is not a JSON object: {content[:100]!r}")
    return answer


def _read(answer: Mapping[str, object]) -> FusionRun:
    """Read the server's answer. `Success` and `Failed` are results of the program; `SandboxError` is a server error."""
    if answer.get("status") not in ("Success", "Failed"):
        raise TryAgainError(f"status {answer.get('status')}: {answer.get('message')!s:.200}")
    compiled, run, ok = answer.get("compile_result"), answer.get("run_result"), answer["status"] == "Success"
    ran = run if isinstance(run, dict) else {}
    printed = (ran.get("stdout") or "") if isinstance(run, dict) else None if ok else ""
    if not isinstance(printed, str):
        raise TryAgainError(f"the answer has no output of the program: {answer!s:.200}")
    code, warned = ran.get("return_code"), ran.get("stderr")
    return FusionRun(
        ok,
        not isinstance(compiled, dict) or _ended_well(compiled),
        printed,
        warned if isinstance(warned, str) else "",
        code if isinstance(code, int) else None,
        ran.get("status") == "TimeLimitExceeded",
        _files(answer.get("files")),
    )


def _files(files: object) -> Mapping[str, bytes]:
    if not isinstance(files, dict):
        return {}
    try:
        return {path: base64.b64decode(content, validate=True) for path, content in files.items()}
    except (ValueError, TypeError):
        raise TryAgainError("the answer has files that are not base64") from None


def _ended_well(command: Mapping[str, object]) -> bool:
    return command.get("status") == "Finished" and command.get("return_code") in (0, None)
