"""Client of a Sandbox Fusion server, which runs programs (`/run_code`, https://github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from aiohttp import ClientSession

from agentrl.config.reward import SandboxFusionConfig
from agentrl.errors import ConfigError, Kind
from agentrl.tools.base import InfraError
from agentrl.utils.http_client import request
from agentrl.utils.retries import GaveUpError, Retries, TryAgainError, raise_if_busy

_NUM_TRIES = 4
_MARGIN_S = 20.0
"""Added to the program's timeouts, because a program may wait in the server's queue."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """Result of a program.

    Attributes:
        ok: the program ended with exit status 0.
        compiled: whether the program could be compiled.
    """

    ok: bool
    compiled: bool
    stdout: str


class SandboxFusion:
    """Client of one server. At most `max_concurrent` programs are sent at a time; further ones wait."""

    def __init__(self, config: SandboxFusionConfig) -> None:
        self._config = config
        self._url = f"{str(config.url).rstrip('/').removesuffix('/run_code')}/run_code"
        self._retries = Retries(_NUM_TRIES, config.max_concurrent)

    async def run(self, session: ClientSession, code: str, stdin: str, language: str) -> ProgramRun:
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
        try:
            return await self._retries.run(lambda: self._try(session, body), body)
        except GaveUpError as error:
            raise InfraError(f"the sandbox {self._url} failed: {error}") from error

    async def _try(self, session: ClientSession, body: bytes) -> ProgramRun:
        answer = await request(session, "POST", self._url, body, 2 * self._config.timeout_s + _MARGIN_S)
        raise_if_busy(answer.status, answer.headers, f"status {answer.status}")
        if answer.status >= 400:
            reason = f"{self._url} answers {answer.status} {answer.excerpt(300)}"
            raise ConfigError.at("reward.sandbox_fusion.url", Kind.WRONG_VALUE, f"reward.sandbox_fusion.url: {reason}")
        return _read(_object(answer.content))


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode. Models and rows may contain them."""
    return text.encode(errors="replace").decode()


def _object(content: bytes) -> Mapping[str, object]:
    try:
        answer = orjson.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise TryAgainError(f"the answer is not a JSON object: {content[:100]!r}")
    return answer


def _read(answer: Mapping[str, object]) -> ProgramRun:
    """Read the server's answer. `Success` and `Failed` are results of the program; `SandboxError` is a server error."""
    if answer.get("status") not in ("Success", "Failed"):
        raise TryAgainError(f"status {answer.get('status')}: {answer.get('message')!s:.200}")
    compiled, run, ok = answer.get("compile_result"), answer.get("run_result"), answer["status"] == "Success"
    printed = (run.get("stdout") or "") if isinstance(run, dict) else None if ok else ""
    if not isinstance(printed, str):
        raise TryAgainError(f"the answer has no output of the program: {answer!s:.200}")
    return ProgramRun(ok, not isinstance(compiled, dict) or _ended_well(compiled), printed)


def _ended_well(command: Mapping[str, object]) -> bool:
    return command.get("status") == "Finished" and command.get("return_code") in (0, None)
