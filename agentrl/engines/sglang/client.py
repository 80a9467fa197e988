"""HTTP to one SGLang server: every answer checked, what is refused told apart from what is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from io import BytesIO
from typing import TypeAlias

import aiohttp
import orjson
from pydantic import JsonValue

from agentrl.errors import AgentRLError

Answer: TypeAlias = dict[str, JsonValue]

KEEP_ALIVE_S = 3.0
"""Seconds an idle connection is kept. SGLang closes them after 5: one used just then looks like a dead server."""

BUSY = (408, 429)
"""What a router answers whose queue is full. Like all from 500 on (no memory left, a worker that is gone, starting up),
it says nothing of the request."""


class ServerError(AgentRLError):
    """An SGLang server that cannot be used; the text names it and says what it answered."""


class UnreachableError(ServerError):
    """No answer, or one of trouble there: the server died, hangs, fails. The same may succeed later, or elsewhere."""


class RefusedError(ServerError):
    """The server answered that it will not."""


class ServerClient:
    """Speaks to one server, over at most `max_connections` connections at a time; further calls wait for one.

    Control calls have connections of their own: they never wait behind generation. Close it in the end.

    Args:
        url: such as http://127.0.0.1:30000.
    """

    def __init__(self, url: str, max_connections: int = 2048) -> None:
        self.url = url.rstrip("/")
        self._generation = _session(max_connections)
        self._control = _session(8)

    async def generate(self, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Answer:
        """Answer of `/generate`, however long it takes.

        Raises:
            UnreachableError: no answer.
            RefusedError: an error in its place.
        """
        return await self._ask(self._generation, "POST", "/generate", body, None, headers)

    async def post(self, path: str, body: Mapping[str, object] | None = None, timeout_s: float = 60.0) -> Answer:
        """A control call. What says `success: false` is refused; an answer that is no JSON object is `{}`."""
        answer = await self._ask(self._control, "POST", path, body or {}, timeout_s)
        if answer.get("success") is False:
            raise RefusedError(f"{self.url}{path}: {answer.get('message')}")
        return answer

    async def get(self, path: str, timeout_s: float = 60.0) -> Answer:
        """What the server says of itself."""
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
        # no plain bytes: aiohttp warns of those above 1 MB, such as weights
        data = None if body is None else BytesIO(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))
        request = session.request(method, self.url + path, data=data, headers=headers)
        try:
            async with asyncio.timeout(timeout_s), request as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{self.url}{path}: {type(error).__name__} {error}".rstrip()) from error
        if response.status >= 400:
            kind = UnreachableError if response.status >= 500 or response.status in BUSY else RefusedError
            text = " ".join(content[:500].decode(errors="replace").split())
            raise kind(f"{self.url}{path}: {response.status} {text}")
        answer = orjson.loads(content) if content and response.content_type == "application/json" else {}
        return answer if isinstance(answer, dict) else {}


def _session(max_connections: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Content-Type": "application/json"},
        json_serialize=str,
    )
