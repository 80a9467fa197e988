"""Client of a chat completions endpoint: retries until an answer is valid, and classifies failures."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiohttp import ClientSession
from pydantic import JsonValue

from agentrl.config.reward_sources import JudgeConfig
from agentrl.errors import ConfigError, Kind, RewardError
from agentrl.security.bounded_json import UnreadableAnswerError, read_text
from agentrl.security.bounded_json import read_json as read_remote_json
from agentrl.tools.base import InfraError
from agentrl.utils.http_client import HttpAnswer, environment_proxy, open_session, request
from agentrl.utils.retries import GaveUpError, Retries, TryAgainError, raise_if_busy

T = TypeVar("T")

_FENCE = "```"


class InvalidAnswerError(Exception):
    """The endpoint's answer is not a verdict; the message gives the reason in one line."""


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
                raise ConfigError.at(f"reward.judge.{name}", Kind.MISSING, f"reward judge needs `reward.judge.{name}`")
        self.url = f"{config.url}/chat/completions"
        self._config = config
        self._key = _key(config.api_key_env)
        self._sleep = sleep
        self._session: ClientSession | None = None
        self._retries = self._new_retries()
        self._num_callers = 0
        self._has_answered = False

    async def ask(self, body: Mapping[str, JsonValue], read: Callable[[str], T]) -> T:
        """Return `read(text)` for the text of a valid answer; `read` raises `InvalidAnswerError` to reject a text.

        Raises:
            InfraError: no valid answer after `max_retries` retries.
            RewardError: the endpoint rejects the request (key, model, address) and has answered no earlier request.
        """
        content = json.dumps(body).encode()
        async with self._opened() as session:
            try:
                return await self._retries.run(lambda: self._try(session, content, read), content)
            except GaveUpError as error:
                failure = self._without_key(str(error))
        raise InfraError(f"{self.url}: no verdict: {failure}")

    async def _try(self, session: ClientSession, body: bytes, read: Callable[[str], T]) -> T:
        answer = await request(session, "POST", self.url, body, self._config.timeout_s, follow_redirects=False)
        self._check(answer)
        try:
            value = read(_content(read_text(answer.content)))
        except InvalidAnswerError as error:
            raise TryAgainError(str(error)) from error
        self._has_answered = True
        return value

    def _check(self, answer: HttpAnswer) -> None:
        if 200 <= answer.status < 300:
            return
        why = f"status {answer.status}: {answer.excerpt(1000)[:300]}"
        raise_if_busy(answer.status, answer.headers, why)
        if self._has_answered:  # earlier requests worked, so the cause is this row or the endpoint
            raise InfraError(f"{self.url}: {self._without_key(why)}")
        raise RewardError(f"{self.url} (reward.judge): {self._without_key(why)}")

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[ClientSession]:
        """HTTP session shared by the running requests. It is closed after the last one, before the event loop ends."""
        if self._session is None:
            self._session = open_session(self._config.max_concurrent, self._key, environment_proxy(self.url))
            self._retries = self._new_retries()  # the event loop may be a new one
        session = self._session
        self._num_callers += 1
        try:
            yield session
        finally:
            self._num_callers -= 1
            if not self._num_callers:
                self._session = None
                await session.close()

    def _new_retries(self) -> Retries:
        return Retries(self._config.max_retries + 1, self._config.max_concurrent, self._sleep)

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "(key)") if self._key else text


def read_json(text: str) -> JsonValue:
    """Parse an answer as JSON, after removing a leading thought and an enclosing code fence.

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
        raise TryAgainError(f"expected a chat completion, got {text[:200]!r:.120}") from None
    if reason == "length":
        raise TryAgainError("the judge ran out of tokens before its verdict: raise reward.judge.max_tokens")
    if not isinstance(content, str):
        raise TryAgainError("expected a chat completion with text, got none")
    return content


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    if not re.fullmatch(r"[A-Za-z_]\w*", variable):  # the value may be a key, so the message does not show it
        raise ConfigError.at(
            "reward.judge.api_key_env",
            Kind.WRONG_VALUE,
            "reward.judge.api_key_env must be the name of an environment variable, not a key",
        )
    if not os.environ.get(variable):
        raise ConfigError.at(
            "reward.judge.api_key_env",
            Kind.NOT_FOUND,
            "reward.judge.api_key_env names an environment variable that is not set",
        )
    return os.environ[variable]
