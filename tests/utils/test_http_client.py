"""HTTP requests to a real server, and through the proxy from the environment."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from agentrl.utils.http_client import NoAnswerError, environment_proxy, open_session, request


@asynccontextmanager
async def served(handler):
    """(session, address) of a server on this machine."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with open_session(api_key="secret") as session:
            yield session, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def echo(asked: web.Request) -> web.Response:
    if asked.path == "/moved":
        raise web.HTTPTemporaryRedirect("/here")
    if asked.path == "/slow":
        await asyncio.sleep(30)
    headers = {"X-Key": asked.headers["Authorization"], "X-Accept": asked.headers["Accept-Encoding"]}
    return web.Response(body=await asked.read(), status=418, headers=headers)


def asked(path: str, **options):
    async def main():
        async with served(echo) as (session, url):
            return await request(session, "POST", url + path, b" one\n two ", **options)

    return asyncio.run(main())


def test_an_answer_of_any_status_is_read():
    answer = asked("/here")
    assert (answer.status, answer.content, answer.excerpt(6)) == (418, b" one\n two ", "one")
    assert answer.headers["X-Key"] == "Bearer secret"
    assert answer.headers["X-Accept"] == "gzip, deflate"  # the encodings that `read_body` decompresses


def test_redirects_are_followed_if_allowed():
    assert asked("/moved").status == 418
    assert asked("/moved", follow_redirects=False).status == 307


def test_missing_http_answer_has_a_reason():
    with pytest.raises(NoAnswerError, match=r"no answer in 0\.05 seconds"):
        asked("/slow", timeout_s=0.05)
    with pytest.raises(NoAnswerError, match=r"^UnreadableAnswerError "):
        asked("/here", max_bytes=3)


def test_a_proxy_gets_the_request():
    async def main():
        async with served(echo) as (_, url), open_session(api_key="secret", proxy=url) as session:
            return await request(session, "POST", "http://judge.example/here", b"asked")

    assert asyncio.run(main()).content == b"asked"


def test_missing_server_is_an_error():
    async def main():
        async with open_session() as session:
            await request(session, "GET", "http://127.0.0.1:9")

    with pytest.raises(NoAnswerError, match=r"^ClientConnectorError "):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://judge.example/v1", "http://proxy:1"),
        ("http://judge.example/v1", "http://proxy:2"),
        ("http://127.0.0.1:30000/v1", None),
        ("https://in.house:8000/v1", None),
    ],
)
def test_proxy_is_read_from_the_environment(monkeypatch, url, proxy):
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("http_proxy", "http://proxy:2")
    monkeypatch.setenv("no_proxy", "127.0.0.1,.house")
    assert environment_proxy(url) == proxy


def test_without_a_proxy_the_connection_is_direct(monkeypatch):
    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert environment_proxy("https://judge.example/v1") is None
    monkeypatch.setenv("all_proxy", "http://proxy:3")
    assert environment_proxy("https://judge.example/v1") == "http://proxy:3"
