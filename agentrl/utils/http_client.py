"""HTTP client for servers: judges, sandboxes, SGLang, retrieval services and environment servers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import certifi

from agentrl.security.bounded_json import MAX_BYTES, UnreadableAnswerError, read_body
from agentrl.utils.retries import TryAgainError

KEEP_ALIVE_S = 3.0
"""Seconds for which an idle connection is kept: less than the 5 s after which a uvicorn server closes it, because a
request on a connection that is just being closed may fail."""


class NoAnswerError(TryAgainError):
    """No readable answer; the text is one line with the reason."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer with any status; `content` is decompressed."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def excerpt(self, num_bytes: int) -> str:
        """The first bytes of the content as one line of text."""
        return " ".join(self.content[:num_bytes].decode(errors="replace").split())


def open_session(
    max_connections: int = 100, api_key: str | None = None, proxy: str | None = None, keeps_cookies: bool = True
) -> aiohttp.ClientSession:
    """Open a session with at most `max_connections` connections. Call this in an event loop, and close the session.

    Args:
        api_key: sent as bearer token.
        proxy: URL of an HTTP proxy.
        keeps_cookies: whether cookies from answers are sent with later requests.
    """
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip, deflate"}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=KEEP_ALIVE_S, ssl=_certificates()),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={**headers, **({"Authorization": f"Bearer {api_key}"} if api_key else {})},
        auto_decompress=False,  # `read_body` decompresses, with a limit on the size
        proxy=proxy,
        cookie_jar=None if keeps_cookies else aiohttp.DummyCookieJar(),
    )


async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: bytes | None = None,
    timeout_s: float | None = None,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = MAX_BYTES,
    follow_redirects: bool = True,
) -> HttpAnswer:
    """Send a request and return the answer, with any status.

    Args:
        timeout_s: total time for connection, request and answer.

    Raises:
        NoAnswerError: no connection, no answer in time, or an answer that is too large or cannot be decompressed.
    """
    data = None if body is None else BytesIO(body)  # aiohttp warns about plain bytes above 1 MB, for example weights
    call = session.request(method, url, data=data, headers=headers, allow_redirects=follow_redirects)
    try:
        async with asyncio.timeout(timeout_s), call as response:
            encoding = response.headers.get("Content-Encoding")
            content = await read_body(response.content.iter_any(), encoding, max_bytes)
    except TimeoutError as error:
        reason = (
            f"{type(error).__name__} {error}".rstrip() if timeout_s is None else f"no answer in {timeout_s:g} seconds"
        )
        raise NoAnswerError(reason) from error
    except (aiohttp.ClientError, OSError, UnreadableAnswerError) as error:
        raise NoAnswerError(f"{type(error).__name__} {error}".rstrip()) from error
    return HttpAnswer(response.status, response.headers, content)


def environment_proxy(url: str) -> str | None:
    """Return the proxy that the environment (`HTTPS_PROXY`, `NO_PROXY`, ...) names for `url`.

    aiohttp's `trust_env` is not used, because it also reads ~/.netrc: a request with an API key would fail if that file
    contains the host.
    """
    address, proxies = urlsplit(url), getproxies()
    return None if proxy_bypass(address.netloc) else proxies.get(address.scheme) or proxies.get("all")


@cache
def _certificates() -> ssl.SSLContext:
    """The system's certificates (or SSL_CERT_FILE), plus certifi's, because Python may find no system certificates."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
