"""Asks an endpoint of chat completions until it gives a valid answer, and says whose fault it is where it does not."""

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
from typing import TypeVar
from zlib import crc32

import httpx
from pydantic import JsonValue

from agentrl.config.reward_models import JudgeConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.tools.base import InfraError

T = TypeVar("T")

FIRST_WAIT_S, MAX_WAIT_S = 0.5, 30.0
"""Before the first further try, doubled for each after it up to the most."""
MAX_RETRY_AFTER_S = 300.0
"""An endpoint that asks for a longer wait is given up for this rollout."""
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n\s*```\s*\Z", re.DOTALL)


class InvalidAnswerError(Exception):
    """What an endpoint said is no verdict; says why, in one line."""


class _TryAgainError(Exception):
    """This try failed, the next may not; `wait_s` is what the endpoint asked for."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class JudgeClient:
    """One endpoint, for any number of callers on one event loop at a time.

    Args:
        sleep: waits so many seconds.

    Raises:
        ConfigError: no address or model is given, or the variable of the key is not set.
    """

    def __init__(self, config: JudgeConfig, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        for name in ("url", "model"):
            if getattr(config, name) is None:
                raise ConfigError(f"reward judge needs 'reward.judge.{name}'")
        self.url = f"{config.url}/chat/completions"
        self._config = config
        self._key = _key(config.api_key_env)
        self._sleep = sleep
        self._ssl = httpx.create_ssl_context()  # once: it reads all certificates
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(config.max_concurrent)
        self._num_callers = 0
        self._free_at = 0.0  # of the loop's clock: an endpoint that asked for rest gets it from all callers
        self._has_answered = False

    async def ask(self, body: Mapping[str, JsonValue], read: Callable[[str], T]) -> T:
        """What `read` makes of the answer's text; it raises `InvalidAnswerError` where it can make nothing of it.

        Raises:
            InfraError: no valid answer came in `max_retries` further tries.
            RewardError: the endpoint refuses such requests (key, model, address), and has never answered one.
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
        raise InfraError(f"{self.url}: no verdict in {tries} tries, the last time: {self._without_key(str(last))}")

    async def _try(self, client: httpx.AsyncClient, body: Mapping[str, JsonValue], read: Callable[[str], T]) -> T:
        async with self._slots:
            if (rest_s := self._free_at - asyncio.get_running_loop().time()) > 0:
                await self._sleep(rest_s)
            try:
                async with asyncio.timeout(self._config.timeout_s):  # httpx's own starts anew with each byte
                    response = await client.post(self.url, json=body)
            except TimeoutError:
                raise _TryAgainError(f"no answer in {self._config.timeout_s:g} seconds") from None
            except httpx.HTTPError as error:
                raise _TryAgainError(f"{type(error).__name__}: {error}") from error
        self._check(response)
        try:
            answer = read(_content(response))
        except InvalidAnswerError as error:
            raise _TryAgainError(str(error)) from error
        self._has_answered = True
        return answer

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        why = f"status {response.status_code}: {' '.join(response.text.split())[:300] or response.reason_phrase}"
        if response.status_code >= 500 or response.status_code in _BUSY:
            raise _TryAgainError(why, _retry_after(response))
        if self._has_answered:  # it was well asked before, so this says something of the row or the endpoint
            raise InfraError(f"{self.url}: {self._without_key(why)}")
        raise RewardError(f"{self.url} (reward.judge): {self._without_key(why)}")

    async def _wait(self, error: _TryAgainError, number: int, body: Mapping[str, JsonValue]) -> None:
        if error.wait_s is None:
            # callers that failed together should not come back together; what they ask sets them apart
            spread = 0.5 + crc32(json.dumps(body).encode()) % 1000 / 1000
            await self._sleep(min(FIRST_WAIT_S * 2**number, MAX_WAIT_S) * spread)
            return
        if error.wait_s > MAX_RETRY_AFTER_S:
            raise InfraError(f"{self.url}: {self._without_key(str(error))}; it asks to wait {error.wait_s:g} seconds")
        self._free_at = max(self._free_at, asyncio.get_running_loop().time() + error.wait_s)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[httpx.AsyncClient]:
        """The connections, open while anybody asks: so nothing is left to be closed when the loop ends."""
        if self._client is None:
            self._client, self._slots = self._new_client(), asyncio.Semaphore(self._config.max_concurrent)
            self._free_at = 0.0  # of a loop that may be another one
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
    """The JSON that an answer is, a leading thought and a code fence around it aside.

    The whole of it must be JSON: a verdict picked out of prose may be one that the prose only quotes.

    Raises:
        InvalidAnswerError: it is something else.
    """
    bare = _THOUGHT.sub("", text)
    if fenced := _FENCE.match(bare):
        bare = fenced[1]
    try:
        answer: JsonValue = json.loads(bare)
    except ValueError:
        raise InvalidAnswerError(f"expected one JSON object, got {text!r:.120}") from None
    return answer


def _content(response: httpx.Response) -> str:
    try:
        choice = response.json()["choices"][0]
        content = choice["message"]["content"]
    except (ValueError, LookupError, TypeError):
        raise _TryAgainError(f"expected a chat completion, got {response.text!r:.120}") from None
    if choice.get("finish_reason") == "length":
        raise _TryAgainError("the judge ran out of tokens before its verdict: raise reward.judge.max_tokens")
    if not isinstance(content, str):
        raise _TryAgainError("expected a chat completion with text, got none")
    return content


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds the endpoint asks to wait (RFC 9110, 10.2.3: a number of them, or a date)."""
    asked = response.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", asked):
        return float(asked)
    try:
        date = parsedate_to_datetime(asked)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    if not re.fullmatch(r"[A-Za-z_]\w*", variable):  # somebody's key, perhaps: it is not repeated here
        raise ConfigError("reward.judge.api_key_env must be the name of an environment variable, not a key")
    if not os.environ.get(variable):
        raise ConfigError("reward.judge.api_key_env names an environment variable that is not set")
    return os.environ[variable]
