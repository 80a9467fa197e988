"""A session of an MCP server. The same asyncio task opens and closes the session, because the SDK requires this."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp import Client, MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
)
from pydantic import JsonValue, TypeAdapter

from agentrl.concurrency import OverdueError
from agentrl.security.redaction import redacted_text
from agentrl.tools.base import ToolError
from agentrl.tools.mcp.health import Health
from agentrl.tools.mcp.http import http_streams, sse_streams
from agentrl.tools.mcp.reaper import Reaper
from agentrl.tools.mcp.servers import McpServer
from agentrl.tools.mcp.stdio import stdio_streams
from agentrl.version import __version__

CLOSE_S = 10.0
"""Seconds to wait for a session to close before its task is cancelled."""
MAX_PAGES, MAX_TOOLS = 100, 1000
_SHOWN = 400
_RESULTS: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)

for _name in ("mcp", "client", "httpx2"):  # these loggers would fill the console with server messages
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class ServerFailedError(Exception):
    """A server did not start, was lost, or violated the protocol. The message is one line that names the server."""


class Session:
    """A session of a server. `open` starts the session.

    Args:
        reaper: ends the server if the run is killed.
        mode: the `handshake` of an earlier session; with it, a session opens faster.
        on_change: called when the server reports that its tools changed.
    """

    def __init__(
        self,
        server: McpServer,
        reaper: Reaper,
        mode: str = "auto",
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._server, self._reaper, self._mode = server, reaper, mode
        self._on_change = on_change
        self._health = Health()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None

    @property
    def alive(self) -> bool:
        """Whether the next call may use the session."""
        return self._task is not None and not self._task.done() and not self._health.lost

    @property
    def handshake(self) -> str:
        """The SDK's name of the handshake that the server supports."""
        return "legacy" if self._open_client.session.discover_result is None else "auto"

    async def open(self, timeout_s: float) -> None:
        """Start or connect to the server.

        Raises:
            ServerFailedError: the server did not start, or did not answer in time.
        """
        opening: asyncio.Future[Client | str] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._own(opening, timeout_s))
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if isinstance(opened, str):
            raise ServerFailedError(f"MCP server '{self._server.name}': {opened}")
        self._client = opened

    async def close(self) -> None:
        """End the session and the processes of the server."""
        await self._end()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_S)

    async def _end(self) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_S)

    async def list_tools(self, timeout_s: float) -> list[Tool]:
        """Return all tools of the server.

        Raises:
            ServerFailedError: the server does not answer, sends an invalid answer or has too many tools.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._pages()
        except TimeoutError:
            raise self._failed(f"it did not list its tools within {timeout_s:g} s") from None
        except ServerFailedError:
            raise
        except Exception as error:  # the SDK raises many types
            raise self._failed(f"it did not list its tools: {_describe(error)}") from error

    async def _pages(self) -> list[Tool]:
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._open_client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            tools += page.tools
            if len(tools) > MAX_TOOLS:
                break
            if (cursor := page.next_cursor) is None:
                return tools
        raise self._failed(f"it has more than {MAX_TOOLS} tools, or more than {MAX_PAGES} pages of them")

    async def call(self, tool: str, arguments: dict[str, JsonValue], timeout_s: float) -> CallToolResult:
        """Run one call. If the call times out or the caller is cancelled, the server is asked to cancel the call.

        Raises:
            ToolError: the server refuses the arguments, or asks for input of a user.
            OverdueError: there was no answer in time.
            ServerFailedError: the session was lost, or the server violated the protocol.
        """
        assert self._task is not None
        # not Client.call_tool: it validates results against the server's schema, whose patterns may take forever
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        sent = asyncio.ensure_future(self._open_client.session.send_request(request, _RESULTS))
        sent.add_done_callback(_retrieve)
        try:
            await asyncio.wait({sent, self._task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if sent.done() and not self._is_loss(sent):
                return self._result(sent)
            if not sent.done() and not self._task.done():
                raise OverdueError
        finally:
            sent.cancel()
        await self._end()  # after this, the exit status and the error output are known
        raise self._failed("the connection was lost during the call")

    def _is_loss(self, sent: asyncio.Future[Any]) -> bool:  # Any: the SDK's coroutine is not typed so far
        """Whether a call ended because the connection is lost, or because the server forgot the session."""
        error = None if sent.cancelled() else sent.exception()
        lost = isinstance(error, MCPError) and error.error.code in (CONNECTION_CLOSED, INVALID_REQUEST)
        if lost and error is not None and (reason := _describe(error)):
            self._health.lose(reason)
        return lost

    def _result(self, sent: asyncio.Future[Any]) -> CallToolResult:  # Any: see `_is_loss`
        try:
            result = sent.result()
        except MCPError as error:
            if error.error.code == INVALID_PARAMS:
                raise ToolError(redacted_text(_shown(error.error.message))) from error
            raise self._failed(f"it answered with an error: {_describe(error)}") from error
        except (Exception, asyncio.CancelledError) as error:  # an answer in the wrong format, or the end of the session
            raise self._failed(f"its answer cannot be used: {_describe(error)}") from error
        if not isinstance(result, CallToolResult):
            raise ToolError("the tool asked for input of a user, which a rollout does not have")
        return result

    def _failed(self, reason: str) -> ServerFailedError:
        return ServerFailedError(f"MCP server '{self._server.name}': {self._health.describe(reason)}")

    @property
    def _open_client(self) -> Client:
        assert self._client is not None, "the session is not open"
        return self._client

    async def _own(self, opened: asyncio.Future[Client | str], timeout_s: float) -> None:
        reason = ""
        try:
            async with asyncio.timeout(timeout_s) as starting, self._connection() as client:
                starting.reschedule(None)
                if not opened.done():
                    opened.set_result(client)
                    await self._stop.wait()
        except TimeoutError:
            reason = f"it did not answer within {timeout_s:g} s"
        except (Exception, BaseExceptionGroup) as error:  # the SDK raises many types
            reason = _describe(error)
        finally:
            if opened.done():
                self._health.lose(reason)
            else:
                opened.set_result(self._health.describe(f"it did not start{reason and f': {reason}'}"))
                self._health.lose()

    def _connection(self) -> Client:
        return Client(
            self._transport(),
            mode=self._mode,
            message_handler=self._message,
            client_info=Implementation(name="agentrl", version=__version__),
            cache=None,
        )

    def _transport(self) -> AbstractAsyncContextManager[Any]:  # Any: the SDK does not export the streams' types
        match self._server.kind:
            case "stdio":
                return stdio_streams(self._server, self._health, self._reaper)
            case "http":
                return http_streams(self._server)
            case "sse":
                return sse_streams(self._server)

    async def _message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification) and self._on_change is not None:
            self._on_change()


def _retrieve(sent: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging the exception of a call that nobody waits for any more."""
    if not sent.cancelled():
        sent.exception()


def _describe(error: BaseException) -> str:
    """Return type and text of the innermost exception, in one line without secrets; "" for a closed connection."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError) and error.error.message == "Connection closed":
        return ""
    text = str(error) if isinstance(error, MCPError | OSError) and str(error) else f"{type(error).__name__}: {error}"
    return redacted_text(_shown(text))


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} …"
