"""Delivery of a turn: waits for the session's answer, keeps the connection alive, and writes the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from agentrl.gateway.base import GatewaySession, Refusal, RequestError, TurnAnswer
from agentrl.gateway.dialects.base import Asked, Dialect, failure_of
from agentrl.gateway.dialects.fields import JsonObject
from agentrl.gateway.dialects.json_text import dumped

_EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_JSON = {"content-type": "application/json"}
_BUG = "the gateway failed; the run reports why"


class ClientGoneError(Exception):
    """The client has closed the connection."""


@dataclass(slots=True)
class Opened:
    """An open session, and the state of its requests.

    Attributes:
        answers: asyncio tasks that produce the session's answers.
        bug: the first unexpected exception of the session's requests: neither a refusal nor a closed connection.
    """

    session: GatewaySession
    answers: set[asyncio.Task[TurnAnswer]] = field(default_factory=set)
    bug: Exception | None = None

    def end(self) -> None:
        """Cancel waiting requests; their clients are told that the rollout has ended."""
        for answer in self.answers:
            answer.cancel()

    def delivered(self, turn_id: str) -> None:
        """Tell the session that the client has received an answer."""
        try:
            self.session.delivered(turn_id)
        except Exception as error:
            self.bug = self.bug or error

    @contextmanager
    def bugs_noted(self) -> Iterator[None]:
        """On an unexpected exception, refuse the request; store the first such exception in `bug`."""
        try:
            yield
        except (RequestError, ClientGoneError, web.HTTPException):
            raise
        except Exception as error:
            self.bug = self.bug or error
            raise RequestError(Refusal.FAILED, _BUG) from error

    @contextmanager
    def answering(self, asked: Asked) -> Iterator[asyncio.Task[TurnAnswer]]:
        """Start a task that answers a request. If the client disconnects before the answer, the task is cancelled."""
        task = asyncio.create_task(self.session.answer(asked.request))
        self.answers.add(task)
        try:
            yield task
        finally:
            self.answers.discard(task)
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()  # otherwise asyncio reports an exception that nobody has retrieved


async def deliver(
    request: web.BaseRequest, opened: Opened, dialect: Dialect, asked: Asked, keep_alive_s: float
) -> web.StreamResponse:
    """Answer a request with the next turn, and tell the session once the client has received the turn.

    Raises:
        RequestError: the request is refused before anything was sent.
        ClientGoneError: the client did not receive the complete answer.
    """
    with opened.answering(asked) as task:
        stream = await _opened_stream(request, dialect, task, keep_alive_s) if asked.stream else None
        try:
            with opened.bugs_noted():
                answer = await _answer(task)
                body = asked.reply.events(answer) if asked.stream else dumped(asked.reply.body(answer))
        except RequestError as error:
            if stream is None:
                raise
            return await _written(request, stream, asked.reply.failed(failure_of(error)))
        stream = await _sent(request, stream, body, _EVENTS if asked.stream else _JSON)
        opened.delivered(answer.turn_id)
        return stream


async def _answer(task: asyncio.Task[TurnAnswer]) -> TurnAnswer:
    await asyncio.wait({task})
    if task.cancelled():
        raise RequestError(Refusal.ENDED, "the rollout has ended")
    return task.result()


async def _opened_stream(
    request: web.BaseRequest, dialect: Dialect, task: asyncio.Task[TurnAnswer], keep_alive_s: float
) -> web.StreamResponse | None:
    """Keep the connection alive until the answer is ready, and return the stream of the keep-alive messages.

    Return None if the answer is ready before the first keep-alive message. Because nothing was sent in this case, an
    error can still set the HTTP status.
    """
    stream = None
    while not (await asyncio.wait({task}, timeout=keep_alive_s))[0]:
        with _client_there():
            if stream is None:
                stream = web.StreamResponse(headers=_EVENTS)
                await stream.prepare(request)
            await stream.write(dialect.keep_alive)
    return stream


async def _sent(
    request: web.BaseRequest, stream: web.StreamResponse | None, body: bytes, headers: Mapping[str, str]
) -> web.StreamResponse:
    if stream is None:
        return await _written(request, web.Response(body=body, headers=headers))
    return await _written(request, stream, body)


async def _written(request: web.BaseRequest, stream: web.StreamResponse, rest: bytes = b"") -> web.StreamResponse:
    """Write an answer to its end; raise `ClientGoneError` if the client has closed the connection."""
    transport = request.transport
    if transport is None:
        raise ClientGoneError
    with _client_there():
        transport.set_write_buffer_limits(high=0)  # so that writing waits until everything has left this process
        await stream.prepare(request)
        await stream.write_eof(rest)
    await asyncio.sleep(0)  # let the event loop notice a closed connection
    if transport.is_closing():
        raise ClientGoneError
    return stream


@contextmanager
def _client_there() -> Iterator[None]:
    try:
        yield
    except ConnectionError:
        raise ClientGoneError from None


def answered(body: JsonObject, status: int = 200) -> web.Response:
    """Return a response with JSON."""
    return web.Response(body=dumped(body), status=status, headers=_JSON)
