"""HTTP server in front of gateway sessions: one key per session, three API dialects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from logging import Logger
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from agentrl.errors import AgentRLError
from agentrl.gateway.access import Callers, Keys, key_and_endpoint, path_of
from agentrl.gateway.base import GatewaySession, Refusal, RequestError
from agentrl.gateway.delivery import ClientGoneError, Opened, answered, deliver
from agentrl.gateway.dialects.base import Asked, Dialect, Failure, failure_of
from agentrl.gateway.dialects.endpoints import COUNT_TOKENS, MODELS, TURNS, allowed_methods, dialect_of, model, models
from agentrl.gateway.dialects.json_text import read_body
from agentrl.security.bounded_json import MAX_BYTES

_SILENT = Logger("agentrl.gateway")
_SILENT.disabled = True
First = Callable[[web.BaseRequest], Awaitable[web.StreamResponse | None]]
_BACKLOG = 1024
_SHUTDOWN_S = 1.0
_THREAD_FROM_BYTES = 2**20
"""Larger bodies, and bodies with images, are parsed in a thread, so that other requests do not wait."""
_NO_KEY = "no such key, or its rollout has ended"
_NO_ENDPOINT = "no such endpoint; there are /v1/chat/completions, /v1/responses, /v1/messages and /v1/models"


@dataclass(frozen=True, slots=True)
class Address:
    """Address at which a program reaches its session. Both values are secret, so `repr` hides them.

    Attributes:
        base_url: the base URL without `/v1`, as Anthropic's clients expect it. The key is in the path of this URL.
        key: the same key, for clients that require an API key. The gateway reads the key in the path.
    """

    base_url: str = field(repr=False)
    key: str = field(repr=False)

    @property
    def openai_base_url(self) -> str:
        """The base URL as OpenAI's clients expect it."""
        return f"{self.base_url}/v1"


class GatewayServer:
    """HTTP server in front of sessions; an async context manager.

    Args:
        host, port: address on which the server listens; port 0: a free port.
        public_url: the address that clients use, for example the address of a tunnel; "": host and port.
        model_name: the model that `/v1/models` lists. Requests may name any model.
        max_bytes: maximum size of a request body.
        keep_alive_s: seconds between two keep-alive messages in a stream that waits for the model.
        socket_path: Unix socket on which the server also listens, for sandboxes without a network.

    Attributes:
        local_url: the address on this machine, without a key.
        first: function that gets each request first. If it returns None, the server answers the request.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        public_url: str = "",
        model_name: str = "policy",
        max_bytes: int = MAX_BYTES,
        keep_alive_s: float = 5.0,
        socket_path: Path | None = None,
    ) -> None:
        self._host, self._port = host, port
        self._public_url = public_url.rstrip("/")
        self.local_url = ""
        self._callers = Callers(host, urlsplit(public_url).hostname)
        self._model_name = model_name
        self._max_bytes = max_bytes
        self._keep_alive_s = keep_alive_s
        self._socket_path = socket_path
        self._keys: Keys[Opened] = Keys()
        self._exit = AsyncExitStack()
        self.first: First = _none

    async def __aenter__(self) -> Self:
        """Start the server.

        Raises:
            AgentRLError: the port cannot be used.
        """
        server = web.Server(
            self._handle,
            request_factory=self._request,
            handler_cancellation=True,  # a client that disconnects ends its request
            access_log=None,  # no logs, because paths contain keys, and HTTP errors may contain keys
            logger=_SILENT,
        )
        runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, backlog=_BACKLOG).start()
        except OSError as error:
            await runner.cleanup()
            reason = error.strerror or str(error)
            raise AgentRLError(f"the gateway cannot listen on {self._host}:{self._port}: {reason}") from error
        self._exit.push_async_callback(runner.cleanup)
        if self._socket_path is not None:
            await web.UnixSite(runner, self._socket_path, backlog=_BACKLOG).start()
            self._socket_path.chmod(0o666)  # sandboxes may run as other users; requests need a key anyway
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.local_url = f"http://{host}:{runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the server and its connections."""
        await self._exit.aclose()

    def has_key(self, key: str) -> bool:
        """Whether a session has this key."""
        return self._keys.find(key) is not None

    def open(self, session: GatewaySession, key: str = "") -> Address:
        """Open a session and return its address. No other session may have this `key`; "": a new key."""
        key = self._keys.add(Opened(session), key)
        return Address((self._public_url or self.local_url) + path_of(key), key)

    async def close(self, address: Address) -> None:
        """End a session: its key is refused from now on, and its waiting requests are ended.

        Raises:
            Exception: the first error of the session's requests that was not a refusal.
        """
        opened = self._keys.remove(address.key)
        if opened is None:
            return
        opened.end()
        await asyncio.sleep(0)
        if opened.bug is not None:
            raise opened.bug

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        # Any: aiohttp's own objects
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._max_bytes)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        key, endpoint = key_and_endpoint(request.path, request.headers)
        failure = self._callers.refusal(request.headers)
        if failure is None:
            try:
                own = await self.first(request)
                return own or await self._answer(request, self._keys.find(key), endpoint)
            except RequestError as error:
                failure = failure_of(error)
            except web.HTTPRequestEntityTooLarge:
                failure = Failure(413, "request_too_large", f"body: larger than {self._max_bytes / 2**20:g} MiB")
            except ClientGoneError:
                raise ConnectionResetError from None  # aiohttp then drops the connection
        return answered(dialect_of(endpoint).error(failure), failure.status)

    async def _answer(self, request: web.BaseRequest, opened: Opened | None, endpoint: str) -> web.StreamResponse:
        methods = allowed_methods(endpoint)
        if request.path == "/" and request.method in methods:
            return web.Response()  # clients check whether the server responds
        if opened is None:
            raise RequestError(Refusal.KEY, _NO_KEY)
        if request.method not in methods:
            return _wrong_path(endpoint, methods)
        with opened.bugs_noted():
            if endpoint in TURNS:
                asked = await self._read(request, TURNS[endpoint])
                return await deliver(request, opened, TURNS[endpoint], asked, self._keep_alive_s)
            if endpoint == COUNT_TOKENS:
                asked = await self._read(request, dialect_of(endpoint))
                return answered({"input_tokens": opened.session.count_tokens(asked.request)})
            return self._about(endpoint)

    def _about(self, endpoint: str) -> web.Response:
        name = endpoint.removeprefix(MODELS).lstrip("/")
        if name:
            return answered(model(name))
        return answered(models(self._model_name)) if endpoint else web.Response()

    async def _read(self, request: web.BaseRequest, dialect: Dialect) -> Asked:
        body = await self._body(request)
        slow = len(body) > _THREAD_FROM_BYTES or b"base64" in body
        asked = await asyncio.to_thread(_read, dialect, body) if slow else _read(dialect, body)
        repeats = request.headers.get("x-stainless-retry-count", "0") != "0"  # sent by the official SDKs
        return replace(asked, request=replace(asked.request, is_retry=True)) if repeats else asked

    async def _body(self, request: web.BaseRequest) -> bytes:
        try:
            return await request.read()
        except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError) as error:
            raise RequestError(Refusal.INVALID, f"body: cannot be read: {type(error).__name__}") from None


async def _none(request: web.BaseRequest) -> None:
    """Default of `GatewayServer.first`: answer no request, so that the server answers all requests."""


def _read(dialect: Dialect, body: bytes) -> Asked:
    return dialect.read(read_body(body))


def _wrong_path(endpoint: str, methods: tuple[str, ...]) -> web.Response:
    if methods:
        failure = Failure(405, "method_not_allowed", f"use {' or '.join(methods)}")
    else:
        failure = Failure(404, "unknown_url", _NO_ENDPOINT)
    return answered(dialect_of(endpoint).error(failure), failure.status)


class SharedServer:
    """One server for the rollouts of a process. It runs while at least one session is open.

    Args:
        make: function that returns a server that has not started.
    """

    def __init__(self, make: Callable[[], GatewayServer] = GatewayServer) -> None:
        self._make = make
        self._server: GatewayServer | None = None
        self._num_open = 0
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def address(self, session: GatewaySession) -> AsyncIterator[Address]:
        """Open a session, and close it at the end. See `GatewayServer.close` for exceptions."""
        server = await self._enter()
        try:
            address = server.open(session)
            try:
                yield address
            finally:
                await server.close(address)
        finally:
            await self._leave(server)

    async def _enter(self) -> GatewayServer:
        async with self._changing:
            if self._server is None:
                self._server = await self._make().__aenter__()
            self._num_open += 1
            return self._server

    async def _leave(self, server: GatewayServer) -> None:
        async with self._changing:
            self._num_open -= 1
            if self._num_open == 0:
                self._server = None
                await server.__aexit__()
