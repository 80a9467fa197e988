"""Connection to an MCP server over HTTP, with limits on the server's answers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from agentrl.tools.mcp.health import MAX_MESSAGE_BYTES
from agentrl.tools.mcp.servers import McpServer

_CONNECT_S, _WRITE_S = 10.0, 30.0
_MAX_CONNECTIONS = 100
"""Maximum number of connections of a session; further calls wait."""


@asynccontextmanager
async def http_streams(server: McpServer) -> AsyncIterator[Any]:  # Any: the SDK does not export the streams' types
    """Open a connection with streamable HTTP."""
    async with (
        _client(server.headers) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


def sse_streams(server: McpServer) -> AbstractAsyncContextManager[Any]:  # Any: see `http_streams`
    """Open a connection with the older HTTP transport (SSE), which uses two addresses. An event has at most 1 MiB."""

    def client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return _client(headers or {})

    return sse_client(server.url, headers=dict(server.headers), httpx_client_factory=client)


def _client(headers: Mapping[str, str]) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        # no compression, because the decompressed answer could be much larger than the bytes received
        headers={**headers, "accept-encoding": "identity"},
        # no read timeout: calls have their own deadline, and a stream may be silent for a long time
        timeout=httpx2.Timeout(None, connect=_CONNECT_S, write=_WRITE_S),
        limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS),
        verify=_certificates(),
        event_hooks={"response": [_limit]},
    )


@cache
def _certificates() -> ssl.SSLContext:
    return httpx2.create_ssl_context()  # takes 20 ms, so all connections share it


async def _limit(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise httpx2.DecodingError(
            "the server compressed its answer, which was not asked for", request=response.request
        )
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Limited(response.stream)


class _Limited(httpx2.AsyncByteStream):
    """A response body with a size limit. Event streams need no limit here, because the SDK limits their events."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for chunk in self._body:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"an answer of more than {MAX_MESSAGE_BYTES // 2**20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()
