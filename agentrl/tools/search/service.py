"""Client of a retrieval service with the interface of Search-R1 and verl."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import orjson
from aiohttp import ClientSession
from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.tools.base import InfraError
from agentrl.tools.search.passages import Found
from agentrl.utils.http_client import HttpAnswer, environment_proxy, open_session, request
from agentrl.utils.retries import GaveUpError, Retries, TryAgainError, raise_if_busy

NUM_TRIES = 5
MAX_ANSWER_BYTES = 8 * 2**20

Sleep = Callable[[float], Awaitable[object]]


class RetrievalService:
    """Client of one service, for one event loop.

    The client posts `{"queries": [...], "topk": k, "return_scores": true}` and reads
    `{"result": [[{"document": {"contents": "title\\ntext"}, "score": s}, ...], ...]}`. `result` has one list per query,
    or is empty.

    Args:
        max_concurrent: maximum number of concurrent requests; further requests wait.
        max_per_s: maximum number of requests that start in a second; None: no limit.
        sleep: waits for a number of seconds.

    Raises:
        ConfigError: `url` is not an HTTP address.
    """

    def __init__(
        self, url: str, max_concurrent: int, max_per_s: float | None = None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._url, self._shown = url, _without_secrets(url)
        self._max_concurrent = max_concurrent
        self._retries = Retries(NUM_TRIES, max_concurrent, sleep)
        self._pace = Pace(max_per_s, sleep)
        self._session: ClientSession | None = None

    async def find(self, queries: Sequence[str], top_k: int, timeout_s: float) -> Found:
        """Return the passages of each query.

        The request is repeated if the service is busy or fails, or if the service's answer is invalid.

        Args:
            timeout_s: timeout of one try in seconds.

        Raises:
            InfraError: all tries failed, or the service refuses the request.
        """
        body = orjson.dumps({"queries": [*queries], "topk": top_k, "return_scores": True})
        try:
            answer = await self._retries.run(lambda: self._try(body, len(queries), timeout_s), body)
        except GaveUpError as error:
            raise InfraError(f"the retrieval service {self._shown} failed: {error}") from error
        return answer

    def metrics(self) -> dict[str, float]:
        """Return no metrics, because the record of each call already contains its duration and outcome."""
        return {}

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _try(self, body: bytes, num_queries: int, timeout_s: float) -> Found:
        await self._pace.wait()
        if self._session is None:
            self._session = open_session(self._max_concurrent, proxy=environment_proxy(self._url))
        answer = await request(self._session, "POST", self._url, body, timeout_s, max_bytes=MAX_ANSWER_BYTES)
        raise_if_busy(answer.status, answer.headers, f"status {answer.status}")
        if answer.status != 200:
            raise InfraError(f"the retrieval service {self._shown} answers {answer.status} {answer.excerpt(300)}")
        return _read(answer, num_queries)


class Pace:
    """A limit on requests per second: starts are at least `1 / max_per_s` seconds apart."""

    def __init__(self, max_per_s: float | None, sleep: Sleep) -> None:
        self._gap_s = 0.0 if max_per_s is None else 1 / max_per_s
        self._sleep = sleep
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next request may start."""
        now = asyncio.get_running_loop().time()
        start, self._next = max(now, self._next), max(now, self._next) + self._gap_s
        if start > now:
            await self._sleep(start - now)


def _read(answer: HttpAnswer, num_queries: int) -> Found:
    try:
        content = read_json(answer.content)
    except UnreadableAnswerError as error:
        raise TryAgainError(f"the answer is {error}") from None
    found = content.get("result") if isinstance(content, dict) else None
    if not isinstance(found, list) or len(found) not in (0, num_queries):
        why = f"expected an object whose 'result' has {num_queries} lists"
        raise TryAgainError(f"{why}, the answer is {answer.excerpt(100)}")
    return [[_contents(hit) for hit in _list(hits)] for hits in found]


def _list(hits: JsonValue) -> list[JsonValue]:
    if not isinstance(hits, list):
        raise TryAgainError(f"expected a list of passages, not {hits!r:.100}")
    return hits


def _contents(hit: JsonValue) -> str:
    document = hit.get("document") if isinstance(hit, dict) else None
    contents = document.get("contents") if isinstance(document, dict) else None
    if not isinstance(contents, str):
        raise TryAgainError(f"expected a passage with 'document.contents', not {hit!r:.100}")
    return contents


def _without_secrets(url: str) -> str:
    """Return the address without user, password and query, for messages."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError as error:
        raise ConfigError.keyless(f"the address of the retrieval service cannot be used: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError.keyless("the address of the retrieval service must begin with http:// or https://")
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
