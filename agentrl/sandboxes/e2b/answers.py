"""Reads the answers of the code interpreter with a limit on their size, and detects answers that end too early."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

MAX_ANSWER_BYTES = 16 * 2**20
"""Maximum size of an answer. Code that writes more output is stopped."""
_END = b'"end_of_execution"'
"""The last line of a complete answer has this type."""
_TAIL = 64


class AnswerTooLongError(Exception):
    """The code wrote more than `MAX_ANSWER_BYTES`."""


class Answer:
    """State of an answer: its size, and whether it is complete."""

    def __init__(self) -> None:
        self._num_bytes, self._tail = 0, b""

    def add(self, data: bytes) -> None:
        """Add a piece of the answer.

        Raises:
            AnswerTooLongError: the answer is too long.
        """
        self._num_bytes += len(data)
        self._tail = (self._tail + data)[-_TAIL:]
        if self._num_bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLongError

    @property
    def complete(self) -> bool:
        """Whether the answer's last line was received. An interrupted stream can end without an error."""
        return _END in self._tail


class BoundedTransport(httpx.AsyncBaseTransport):
    """Forwards requests, and adds the data of their answers to an `Answer`."""

    def __init__(self, inner: httpx.AsyncBaseTransport, answer: Answer) -> None:
        self._inner, self._answer = inner, answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        request.headers["Accept-Encoding"] = "identity"  # the limit applies to uncompressed text
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Watched(response.stream, self._answer)
        return response


class _Watched(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, answer: Answer) -> None:
        self._inner, self._answer = inner, answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            self._answer.add(data)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()
