"""HTTP client of one SGLang server. Distinguishes refused requests from an unreachable server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from io import BytesIO
from typing import TypeAlias

import aiohttp
import orjson
from pydantic import JsonValue

from agentrl.errors import AgentRLError
from agentrl.security.bounded_json import UnreadableAnswerError, read_body

Answer: TypeAlias = dict[str, JsonValue]

KEEP_ALIVE_S = 3.0
"""Seconds an idle connection is kept. SGLang closes it after 5 s; a request at that moment would fail."""

MAX_ANSWER_BYTES = 2**30
"""Largest answer. A long answer with log-probabilities and routed experts has tens of megabytes."""

BUSY = (408, 429)
"""HTTP statuses of a router with a full queue. Like statuses from 500 on (out of memory, lost worker, starting up),
they do not mean that the request is wrong."""


class ServerError(AgentRLError):
    """An SGLang server cannot be used; the message has its URL and its answer."""


class UnreachableError(ServerError):
    """No answer, or a server failure. The same request may succeed later or on another server."""


class RefusedError(ServerError):
    """The server refused the request."""


class ServerClient:
    """Client of one server with at most `max_connections` concurrent generation calls; further calls wait.

    Control calls use separate connections, so they never wait for generation. Call `close` when done.

    Args:
        url: for example http://127.0.0.1:30000.
        api_key: the server's API key; None if it has none.
    """

    def __init__(self, url: str, max_connections: int = 2048, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._generation = _session(max_connections, api_key)
        self._control = _session(8, api_key)

    async def generate(self, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Answer:
        """Call `/generate`, without a timeout.

        Raises:
            UnreachableError: no answer, or a server failure.
            RefusedError: the server answered with an error.
        """
        return await self._ask(self._generation, "POST", "/generate", body, None, headers)

    async def post(self, path: str, body: Mapping[str, object] | None = None, timeout_s: float = 60.0) -> Answer:
        """Make a control call. `success: false` raises RefusedError; an answer that is no JSON object becomes `{}`."""
        answer = await self._ask(self._control, "POST", path, body or {}, timeout_s)
        if answer.get("success") is False:
            raise RefusedError(f"{self.url}{path}: {answer.get('message')}")
        return answer

    async def get(self, path: str, timeout_s: float = 60.0) -> Answer:
        """Read information about the server."""
        return await self._ask(self._control, "GET", path, None, timeout_s)

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
    ) -> Answer:
        # not plain bytes: aiohttp warns about bytes above 1 MB, for example weights
        data = None if body is None else BytesIO(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))
        request = session.request(method, self.url + path, data=data, headers=headers)
        try:
            async with asyncio.timeout(timeout_s), request as response:
                encoding = response.headers.get("Content-Encoding")
                content = await read_body(response.content.iter_any(), encoding, MAX_ANSWER_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError, UnreadableAnswerError) as error:
            raise UnreachableError(f"{self.url}{path}: {type(error).__name__} {error}".rstrip()) from error
        if response.status >= 400:
            kind = UnreachableError if response.status >= 500 or response.status in BUSY else RefusedError
            text = " ".join(content[:500].decode(errors="replace").split())
            raise kind(f"{self.url}{path}: {response.status} {text}")
        if not content or response.content_type != "application/json":
            return {}
        try:
            answer = orjson.loads(content)  # refuses JSON with more than 1,024 nesting levels
        except ValueError as error:
            raise UnreachableError(f"{self.url}{path}: the answer is not JSON: {error}") from error
        return answer if isinstance(answer, dict) else {}


def _session(max_connections: int, api_key: str | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {api_key}"} if api_key else {})},
        json_serialize=str,
        auto_decompress=False,
    )
