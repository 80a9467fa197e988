"""Client of a chat completions endpoint: retries until an answer is valid, and classifies failures."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeVar
from zlib import crc32

import httpx
from pydantic import JsonValue

from agentrl.config.reward_sources import JudgeConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.security.bounded_json import UnreadableAnswerError, read_body, read_text
from agentrl.security.bounded_json import read_json as read_remote_json
from agentrl.tools.base import InfraError

T = TypeVar("T")

FIRST_WAIT_S, MAX_WAIT_S = 0.5, 30.0
"""Wait before the first retry, doubled for each further retry up to the maximum."""
MAX_RETRY_AFTER_S = 300.0
"""If an endpoint asks for a longer wait, the rollout gets no verdict."""
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_FENCE = "```"


class InvalidAnswerError(Exception):
    """The endpoint's answer is not a verdict; the message gives the reason in one line."""


class _TryAgainError(Exception):
    """This try failed, but the next one may succeed; `wait_s` is the wait that the endpoint asked for."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class JudgeClient:
    """Client of one endpoint, for any number of callers on one event loop at a time.

    Args:
        sleep: waits for a number of seconds.

    Raises:
        ConfigError: the URL or the model is missing, or the environment variable of the key is not set.
    """

    def __init__(self, config: JudgeConfig, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        for name in ("url", "model"):
            if getattr(config, name) is None:
                raise ConfigError(f"reward judge needs 'reward.judge.{name}'")
        self.url = f"{config.url}/chat/completions"
        self._config = config
        self._key = _key(config.api_key_env)
        self._sleep = sleep
        self._ssl = httpx.create_ssl_context()  # only once, since it loads all certificates
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(config.max_concurrent)
        self._num_callers = 0
        self._free_at = 0.0  # time of the event loop; all callers wait if the endpoint asked for a pause
        self._has_answered = False

    async def ask(self, body: Mapping[str, JsonValue], read: Callable[[str], T]) -> T:
        """Return `read(text)` for the text of a valid answer; `read` raises `InvalidAnswerError` to reject a text.

        Raises:
            InfraError: no valid answer came in `max_retries` further tries.
            RewardError: the endpoint rejects the request (key, model, address), and has never answered one.
        """
        async with self._opened() as client:
            for number in range(self._config.max_retries + 1):
                try:
                    return await self._try(client, body, read)
                except _TryAgainError as error:
                    last = error
                if number < self._config.max_retries:
                    await self._wait(last, number, body)
        tries = self._config.max_retries + 1
        raise InfraError(f"{self.url}: no verdict in {tries} tries, last error: {self._without_key(str(last))}")

    async def _try(self, client: httpx.AsyncClient, body: Mapping[str, JsonValue], read: Callable[[str], T]) -> T:
        async with self._slots:
            if (rest_s := self._free_at - asyncio.get_running_loop().time()) > 0:
                await self._sleep(rest_s)
            try:
                async with asyncio.timeout(self._config.timeout_s):  # httpx's own timeout restarts with each byte
                    response, text = await self._post(client, body)
            except TimeoutError:
                raise _TryAgainError(f"no answer in {self._config.timeout_s:g} seconds") from None
            except httpx.HTTPError as error:
                raise _TryAgainError(f"{type(error).__name__}: {error}") from error
            except UnreadableAnswerError as error:
                raise _TryAgainError(str(error)) from error
        self._check(response, text)
        try:
            answer = read(_content(text))
        except InvalidAnswerError as error:
            raise _TryAgainError(str(error)) from error
        self._has_answered = True
        return answer

    async def _post(self, client: httpx.AsyncClient, body: Mapping[str, JsonValue]) -> tuple[httpx.Response, str]:
        async with client.stream("POST", self.url, json=body) as response:
            content = await read_body(response.aiter_raw(), response.headers.get("Content-Encoding"))
        return response, read_text(content)

    def _check(self, response: httpx.Response, text: str) -> None:
        if response.is_success:
            return
        why = f"status {response.status_code}: {' '.join(text[:1000].split())[:300] or response.reason_phrase}"
        if response.status_code >= 500 or response.status_code in _BUSY:
            raise _TryAgainError(why, _retry_after(response))
        if self._has_answered:  # earlier requests worked, so the cause is this row or the endpoint
            raise InfraError(f"{self.url}: {self._without_key(why)}")
        raise RewardError(f"{self.url} (reward.judge): {self._without_key(why)}")

    async def _wait(self, error: _TryAgainError, number: int, body: Mapping[str, JsonValue]) -> None:
        if error.wait_s is None:
            # callers that failed together should not retry together; the request's hash spreads them
            spread = 0.5 + crc32(json.dumps(body).encode()) % 1000 / 1000
            await self._sleep(min(FIRST_WAIT_S * 2**number, MAX_WAIT_S) * spread)
            return
        if error.wait_s > MAX_RETRY_AFTER_S:
            raise InfraError(f"{self.url}: {self._without_key(str(error))}; it asks to wait {error.wait_s:g} seconds")
        self._free_at = max(self._free_at, asyncio.get_running_loop().time() + error.wait_s)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[httpx.AsyncClient]:
        """Connections that are open while any caller asks, so that none is left open when the event loop ends."""
        if self._client is None:
            self._client, self._slots = self._new_client(), asyncio.Semaphore(self._config.max_concurrent)
            self._free_at = 0.0  # the event loop may be a new one
        client = self._client
        self._num_callers += 1
        try:
            yield client
        finally:
            self._num_callers -= 1
            if not self._num_callers:
                self._client = None
                await client.aclose()

    def _new_client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx.Limits(max_connections=self._config.max_concurrent)
        return httpx.AsyncClient(headers=headers, timeout=self._config.timeout_s, limits=limits, verify=self._ssl)

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "(key)") if self._key else text


def read_json(text: str) -> JsonValue:
    """Parse an answer as JSON, without a leading thought and an enclosing code fence.

    The entire answer must be JSON: a verdict inside prose may be only a quotation.

    Raises:
        InvalidAnswerError: the answer is not JSON.
    """
    try:
        return read_remote_json(_unfenced(_without_thought(text)))
    except UnreadableAnswerError as error:
        raise InvalidAnswerError(f"expected one JSON object, got {text[:200]!r:.120} ({error})") from None


def _without_thought(text: str) -> str:
    if not text[:1000].lstrip().startswith("<think>"):
        return text
    _, mark, rest = text.partition("</think>")
    return rest if mark else text


def _unfenced(text: str) -> str:
    """Content of a text that is one block fenced with ```; otherwise the text itself."""
    bare = text.strip()
    first, newline, rest = bare.partition("\n")
    if not newline or first.strip() not in (_FENCE, f"{_FENCE}json") or not rest.endswith(_FENCE):
        return bare
    return rest.removesuffix(_FENCE)


def _content(text: str) -> str:
    try:
        answer: Any = read_remote_json(text)  # Any: sent by the endpoint; a wrong shape raises
        choice = answer["choices"][0]
        content, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _TryAgainError(f"expected a chat completion, got {text[:200]!r:.120}") from None
    if reason == "length":
        raise _TryAgainError("the judge ran out of tokens before its verdict: raise reward.judge.max_tokens")
    if not isinstance(content, str):
        raise _TryAgainError("expected a chat completion with text, got none")
    return content


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds that the endpoint asks to wait (RFC 9110, 10.2.3: a number of seconds, or a date)."""
    asked = response.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", asked):
        return float(asked)
    try:
        date = parsedate_to_datetime(asked)
    except (ValueError, TypeError, LookupError, OverflowError):  # not a date
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    if not re.fullmatch(r"[A-Za-z_]\w*", variable):  # it may be a key, so the message does not repeat it
        raise ConfigError("reward.judge.api_key_env must be the name of an environment variable, not a key")
    if not os.environ.get(variable):
        raise ConfigError("reward.judge.api_key_env names an environment variable that is not set")
    return os.environ[variable]
