"""HTTP client of one SGLang server. Distinguishes refused requests from an unreachable server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import aiohttp
import orjson
from pydantic import JsonValue

from agentrl.errors import AgentRLError
from agentrl.utils.http_client import NoAnswerError, open_session, request

Answer: TypeAlias = dict[str, JsonValue]

MAX_ANSWER_BYTES = 2**30
"""Maximum size of an answer. Long answers with log-probabilities and routed experts have tens of megabytes."""

BUSY = (408, 429)
"""HTTP statuses of a router with a full queue.

A request may be valid even if it gets one of these statuses, or 500 or more (out of memory, lost worker, starting up).
So these statuses raise `UnreachableError`, after which the engine sends the request again.
"""


class ServerError(AgentRLError):
    """An SGLang server cannot be used; the message contains the server's URL and answer."""


class UnreachableError(ServerError):
    """No answer, or a server failure. The same request may succeed later or on another server."""


class RefusedError(ServerError):
    """The server refused the request."""


class ServerClient:
    """Client of one server with at most `max_connections` concurrent generation calls; further calls wait.

    Control calls use separate connections, so they never wait for generation. Call `close` when done.

    Args:
        url: for example http://127.0.0.1:30000.
        api_key: the server's API key; None if the server has none.
    """

    def __init__(self, url: str, max_connections: int = 2048, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._max_connections = max_connections
        self._open(api_key)

    def _open(self, api_key: str | None) -> None:
        self._generation = open_session(self._max_connections, api_key)
        self._control = open_session(8, api_key)

    async def move(self, url: str, api_key: str | None) -> None:
        """Use a server at another address; requests that still run at the earlier address fail."""
        if url != self.url:
            await self.close()
            self.url = url
            self._open(api_key)

    async def generate(self, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Answer:
        """Call `/generate`, without a timeout.

        Raises:
            UnreachableError: no answer, or a server failure.
            RefusedError: the server answered with an error.
        """
        return _object(await self._ask(self._generation, "POST", "/generate", body, None, headers))

    async def post(self, path: str, body: Mapping[str, object] | None = None, timeout_s: float = 60.0) -> Answer:
        """Make a control call. `success: false` raises RefusedError. An answer that is no object becomes `{}`."""
        answer = _object(await self._ask(self._control, "POST", path, body or {}, timeout_s))
        if answer.get("success") is False:
            raise RefusedError(f"{self.url}{path}: {answer.get('message')}")
        return answer

    async def get(self, path: str, timeout_s: float = 60.0) -> Answer:
        """Read information about the server."""
        return _object(await self._ask(self._control, "GET", path, None, timeout_s))

    async def post_for_list(self, path: str, body: Mapping[str, object], timeout_s: float = 60.0) -> list[JsonValue]:
        """Make a control call that returns a list; any other answer counts as `[]`."""
        answer = await self._ask(self._control, "POST", path, body, timeout_s)
        return answer if isinstance(answer, list) else []

    async def close(self) -> None:
        """Close the connections."""
        await self._generation.close()
        await self._control.close()

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        timeout_s: float | None,
        headers: Mapping[str, str] | None = None,
    ) -> JsonValue:
        url = self.url + path
        content = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            answer = await request(session, method, url, content, timeout_s, headers, MAX_ANSWER_BYTES)
        except NoAnswerError as error:
            raise UnreachableError(f"{url}: {error}") from error
        if answer.status >= 400:
            kind = UnreachableError if answer.status >= 500 or answer.status in BUSY else RefusedError
            raise kind(f"{url}: {answer.status} {answer.excerpt(500)}")
        if not answer.content or not answer.headers.get("Content-Type", "").startswith("application/json"):
            return {}
        try:
            read: JsonValue = orjson.loads(answer.content)  # refuses JSON with more than 1,024 nesting levels
        except ValueError as error:
            raise UnreachableError(f"{url}: the answer is not JSON: {error}") from error
        return read


def _object(answer: JsonValue) -> Answer:
    return answer if isinstance(answer, dict) else {}
