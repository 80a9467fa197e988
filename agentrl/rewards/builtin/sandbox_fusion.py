"""Client of a Sandbox Fusion server, which runs programs (`/run_code`, https://github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import orjson

from agentrl.config.reward import SandboxFusionConfig
from agentrl.errors import ConfigError
from agentrl.security.bounded_json import UnreadableAnswerError, read_body
from agentrl.tools.base import InfraError

_LOGGER = logging.getLogger(__name__)
_MAX_TRIES = 4
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_MARGIN_S = 20.0
"""Extra time for an answer, beyond the program's timeouts: the server has its own queue."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """Result of a program.

    Attributes:
        ok: the program ran to its end, with exit status 0.
        compiled: whether the program could be compiled.
    """

    ok: bool
    compiled: bool
    stdout: str


class _TryAgainError(Exception):
    """The try failed without a result for the program; the request is retried."""

    def __init__(self, text: str, pause_s: float | None = None) -> None:
        super().__init__(text)
        self.pause_s = pause_s


class SandboxFusion:
    """Client of one server. At most `max_concurrent` programs are sent at a time; further ones wait."""

    def __init__(self, config: SandboxFusionConfig) -> None:
        self._config = config
        self._url = f"{str(config.url).rstrip('/').removesuffix('/run_code')}/run_code"
        self._slots = asyncio.Semaphore(config.max_concurrent)

    async def run(self, session: aiohttp.ClientSession, code: str, stdin: str, language: str) -> ProgramRun:
        """Run a program once. The request is retried if the server is busy, fails or cannot be reached.

        Raises:
            InfraError: all tries failed.
            ConfigError: the server rejects the request.
        """
        body = orjson.dumps(
            {
                "code": _encodable(code),
                "stdin": _encodable(stdin),
                "language": language,
                "compile_timeout": self._config.timeout_s,
                "run_timeout": self._config.timeout_s,
                "memory_limit_MB": self._config.memory_limit_mb,
                "files": {},
                "fetch_files": [],
            }
        )
        async with self._slots:
            for attempt in range(1, _MAX_TRIES + 1):
                try:
                    return _read(await self._ask(session, body))
                except _TryAgainError as error:
                    if attempt == _MAX_TRIES:
                        raise InfraError(f"the sandbox {self._url} failed {attempt} times: {error}") from error
                    _LOGGER.info("the sandbox %s: %s", self._url, error)
                    pause_s = _FIRST_PAUSE_S * 2 ** (attempt - 1) if error.pause_s is None else error.pause_s
                    await asyncio.sleep(min(pause_s, _MAX_PAUSE_S))
        raise AssertionError  # the last attempt returned or raised

    async def _ask(self, session: aiohttp.ClientSession, body: bytes) -> Mapping[str, object]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            async with (
                asyncio.timeout(2 * self._config.timeout_s + _MARGIN_S),
                session.post(self._url, data=body, headers=headers) as response,
            ):
                content = await read_body(response.content.iter_any(), response.headers.get("Content-Encoding"))
        except (aiohttp.ClientError, TimeoutError, OSError, UnreadableAnswerError) as error:
            raise _TryAgainError(f"{type(error).__name__} {error}".rstrip()) from error
        if response.status == 429 or response.status >= 500:
            pause = response.headers.get("Retry-After", "")[:20]
            asked_s = float(pause) if pause.isascii() and pause.isdecimal() else None
            raise _TryAgainError(f"status {response.status}", asked_s)
        if response.status >= 400:
            text = " ".join(content[:300].decode(errors="replace").split())
            raise ConfigError(f"reward.sandbox_fusion.url: {self._url} answers {response.status} {text}")
        return _object(content)


def client_session() -> aiohttp.ClientSession:
    """Session without its own timeout and without decompression; `read_body` decompresses."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode. Models and rows may contain them."""
    return text.encode(errors="replace").decode()


def _object(content: bytes) -> Mapping[str, object]:
    try:
        answer = orjson.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _TryAgainError(f"the answer is not a JSON object: {content[:100]!r}")
    return answer


def _read(answer: Mapping[str, object]) -> ProgramRun:
    """Read the server's answer. `Success` and `Failed` describe the program, `SandboxError` the server."""
    if answer.get("status") not in ("Success", "Failed"):
        raise _TryAgainError(f"status {answer.get('status')}: {answer.get('message')!s:.200}")
    compiled, run, ok = answer.get("compile_result"), answer.get("run_result"), answer["status"] == "Success"
    printed = (run.get("stdout") or "") if isinstance(run, dict) else None if ok else ""
    if not isinstance(printed, str):
        raise _TryAgainError(f"the answer has no output of the program: {answer!s:.200}")
    return ProgramRun(ok, not isinstance(compiled, dict) or _ended_well(compiled), printed)


def _ended_well(command: Mapping[str, object]) -> bool:
    return command.get("status") == "Finished" and command.get("return_code") in (0, None)
