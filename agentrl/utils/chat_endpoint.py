"""Client of a chat completions endpoint: retries until an answer is valid, and classifies failures."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import ClientSession
from pydantic import JsonValue

from agentrl.errors import ConfigError, Kind
from agentrl.security.bounded_json import read_json, read_text
from agentrl.types.messages import ChatAnswer
from agentrl.utils.http_client import HttpAnswer, environment_proxy, open_session, request
from agentrl.utils.rate_limiter import RateLimiter
from agentrl.utils.retries import GaveUpError, Retries, TryAgainError, raise_if_busy

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]


class InvalidAnswerError(Exception):
    """The endpoint's answer cannot be used; the message gives the reason in one line."""


class EndpointFailedError(Exception):
    """No valid answer; the text is one line with the address and the reason, without the API key."""


class EndpointRefusedError(Exception):
    """The endpoint rejects a request and has given no valid answer yet: probably key, model or address is wrong."""


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """How to reach an endpoint.

    Attributes:
        url: address without /chat/completions.
        wants: noun for an answer in error messages, such as "verdict".
        max_concurrent: maximum number of concurrent requests.
        max_per_minute: maximum number of requests per minute; None: no limit.
        timeout_s: timeout of one request, in seconds.
    """

    url: str
    api_key: str = ""
    wants: str = "answer"
    max_concurrent: int = 32
    max_per_minute: float | None = None
    timeout_s: float = 60.0
    max_retries: int = 4


class _Connection:
    """An HTTP session with its retry state, for one event loop."""

    def __init__(self, session: ClientSession, retries: Retries) -> None:
        self.session, self.retries = session, retries
        self.loop = asyncio.get_running_loop()
        self.num_callers = 0


class ChatEndpoint:
    """Client of one endpoint. Callers may use it concurrently if they run on the same event loop.

    Args:
        sleep: waits for a number of seconds.
    """

    def __init__(self, options: EndpointOptions, sleep: Sleep = asyncio.sleep) -> None:
        self.url = f"{options.url}/chat/completions"
        self._options, self._sleep = options, sleep
        self._connection: _Connection | None = None
        self._limiter = RateLimiter(options.max_per_minute, sleep=sleep) if options.max_per_minute else None
        self._has_answered = False

    async def ask(self, body: Mapping[str, JsonValue], read: Callable[[ChatAnswer], T]) -> T:
        """Return `read(answer)` of a valid answer; `read` raises `InvalidAnswerError` to reject an answer.

        Raises:
            EndpointFailedError: no valid answer after `max_retries` retries; or the endpoint rejects the request, but
                has given a valid answer to an earlier request.
            EndpointRefusedError: the endpoint rejects the request, and has given no valid answer yet.
        """
        content = json.dumps(body).encode()
        async with self._opened() as connection:
            try:
                return await connection.retries.run(lambda: self._try(connection.session, content, read), content)
            except GaveUpError as error:
                failure = self._without_key(str(error))
        raise EndpointFailedError(f"{self.url}: no {self._options.wants}: {failure}")

    async def _try(self, session: ClientSession, body: bytes, read: Callable[[ChatAnswer], T]) -> T:
        if self._limiter is not None:
            await self._limiter.wait()
        answer = await request(session, "POST", self.url, body, self._options.timeout_s, follow_redirects=False)
        self._check(answer)
        try:
            value = read(_completion(read_text(answer.content)))
        except InvalidAnswerError as error:
            raise TryAgainError(str(error)) from error
        self._has_answered = True
        return value

    def _check(self, answer: HttpAnswer) -> None:
        if 200 <= answer.status < 300:
            return
        why = f"status {answer.status}: {answer.excerpt(1000)[:300]}"
        raise_if_busy(answer.status, answer.headers, why)
        text = f"{self.url}: {self._without_key(why)}"
        # if earlier requests worked, the cause is this request or the endpoint, not the settings
        raise EndpointFailedError(text) if self._has_answered else EndpointRefusedError(text)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[_Connection]:
        """Yield the connection that all running requests share.

        The last running request closes the connection, so that none is open when the event loop ends.
        """
        connection = self._connection
        if connection is None or connection.loop is not asyncio.get_running_loop():
            connection = self._connection = self._connected()
        connection.num_callers += 1
        try:
            yield connection
        finally:
            connection.num_callers -= 1
            if not connection.num_callers:
                self._connection = None if self._connection is connection else self._connection
                await connection.session.close()

    def _connected(self) -> _Connection:
        options = self._options
        session = open_session(options.max_concurrent, options.api_key, environment_proxy(self.url))
        return _Connection(session, Retries(options.max_retries + 1, options.max_concurrent, self._sleep))

    def _without_key(self, text: str) -> str:
        return text.replace(self._options.api_key, "(key)") if self._options.api_key else text


def without_thought(text: str) -> str:
    """Return the text after a leading `<think>…</think>`; a thought without an end is kept."""
    if not text[:1000].lstrip().startswith("<think>"):
        return text
    _, mark, rest = text.partition("</think>")
    return rest if mark else text


def api_key_of(variable: str | None, key: str) -> str:
    """Return the value of an environment variable; "" if `variable` is None.

    Args:
        key: name of the setting that contains `variable`, for error messages.

    Raises:
        ConfigError: the variable is not set. The message never shows `variable`, which may be an API key
            instead of a name by mistake.
    """
    if variable is None:
        return ""
    if not re.fullmatch(r"[A-Za-z_]\w*", variable):
        raise ConfigError.at(key, Kind.WRONG_VALUE, f"{key} must be the name of an environment variable, not a key")
    if not os.environ.get(variable):
        raise ConfigError.at(key, Kind.NOT_FOUND, f"{key} names an environment variable that is not set")
    return os.environ[variable]


def _completion(text: str) -> ChatAnswer:
    try:
        answer: Any = read_json(text)  # Any: of unknown shape; a wrong shape raises below
        choice = answer["choices"][0]
        content, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise TryAgainError(f"expected a chat completion, got {text[:200]!r:.120}") from None
    cut = reason == "length"
    if not isinstance(content, str) and not cut:
        raise TryAgainError("expected a chat completion with text, got none")
    usage = answer.get("usage")
    return ChatAnswer(content if isinstance(content, str) else "", cut, *map(_count(usage), _COUNTS))


_COUNTS = ("prompt_tokens", "completion_tokens")


def _count(usage: object) -> Callable[[str], int | None]:
    """Return a function: name of a count in `usage` -> the count; None if the count is missing or not plausible."""

    def read(name: str) -> int | None:
        value = usage.get(name) if isinstance(usage, dict) else None
        return value if isinstance(value, int) and 0 <= value < 2**40 else None

    return read
