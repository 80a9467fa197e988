"""Programs run by a Sandbox Fusion server (its `/run_code`, https://github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import orjson

from agentrl.config.reward import SandboxFusionConfig
from agentrl.errors import ConfigError
from agentrl.tools.base import InfraError

_LOGGER = logging.getLogger(__name__)
_MAX_TRIES = 4
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_MARGIN_S = 20.0
"""What an answer may take beyond the timeouts of the program: the server has a queue of its own."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """How a program ended.

    Attributes:
        ok: it ran to its end, with status 0.
        compiled: false where it could not be compiled.
    """

    ok: bool
    compiled: bool
    stdout: str


class _TryAgainError(Exception):
    """Nothing was found out about the program."""

    def __init__(self, text: str, pause_s: float | None = None) -> None:
        super().__init__(text)
        self.pause_s = pause_s


class SandboxFusion:
    """A client of one server; at most `max_concurrent` programs are with it at a time, further ones wait."""

    def __init__(self, config: SandboxFusionConfig) -> None:
        self._config = config
        self._url = f"{str(config.url).rstrip('/').removesuffix('/run_code')}/run_code"
        self._slots = asyncio.Semaphore(config.max_concurrent)

    async def run(self, session: aiohttp.ClientSession, code: str, stdin: str, language: str) -> ProgramRun:
        """Run a program once; the server is asked again where it is busy, broken or gone.

        Raises:
            InfraError: it stayed so.
            ConfigError: the server refuses such requests.
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
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _TryAgainError(f"{type(error).__name__} {error}".rstrip()) from error
        if response.status == 429 or response.status >= 500:
            pause = response.headers.get("Retry-After", "")
            raise _TryAgainError(f"status {response.status}", float(pause) if pause.isdecimal() else None)
        if response.status >= 400:
            text = " ".join(content[:300].decode(errors="replace").split())
            raise ConfigError(f"reward.sandbox_fusion.url: {self._url} answers {response.status} {text}")
        return _object(content)


def _encodable(text: str) -> str:
    """Without halves of a surrogate pair, which a model or a row may bring and UTF-8 has no form for."""
    return text.encode(errors="replace").decode()


def _object(content: bytes) -> Mapping[str, object]:
    try:
        answer = orjson.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _TryAgainError(f"an answer that is no JSON object: {content[:100]!r}")
    return answer


def _read(answer: Mapping[str, object]) -> ProgramRun:
    """`Success` and `Failed` speak of the program, `SandboxError` of the server."""
    if answer.get("status") not in ("Success", "Failed"):
        raise _TryAgainError(f"status {answer.get('status')}: {answer.get('message')!s:.200}")
    compiled, run, ok = answer.get("compile_result"), answer.get("run_result"), answer["status"] == "Success"
    printed = (run.get("stdout") or "") if isinstance(run, dict) else None if ok else ""
    if not isinstance(printed, str):
        raise _TryAgainError(f"an answer without what the program printed: {answer!s:.200}")
    return ProgramRun(ok, not isinstance(compiled, dict) or _ended_well(compiled), printed)


def _ended_well(command: Mapping[str, object]) -> bool:
    return command.get("status") == "Finished" and command.get("return_code") in (0, None)
