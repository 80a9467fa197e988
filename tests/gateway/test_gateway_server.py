"""The gateway's HTTP server: keys, access, errors, streams, delivery, and its life."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re

import aiohttp
import pytest
from scripted_session import ANSWER, BODIES, USER, ScriptedSession, served

from agentrl.errors import AgentRLError
from agentrl.gateway.base import Refusal, RequestError, TurnAnswer
from agentrl.gateway.server import GatewayServer, SharedServer

ENDPOINTS = pytest.mark.parametrize("endpoint", BODIES)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
KEEP_ALIVE = {"chat/completions": b": wait", "responses": b": wait", "messages": b"event: ping"}


async def post(client, url, body, **options):
    """(status, JSON or text) of a request."""
    async with client.post(url, json=body, **options) as response:
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


def error_code(endpoint, body):
    """The code of an error, in the form of the endpoint's dialect."""
    if endpoint.startswith("messages"):
        assert body["type"] == "error"
        return body["error"]["type"]
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]["code"]


# -- turns


@ENDPOINTS
@STREAMED
def test_a_turn_is_answered_and_delivered(endpoint, stream):
    async def run():
        session = ScriptedSession()
        async with served(session) as (address, client):
            status, body = await post(
                client, f"{address.openai_base_url}/{endpoint}", {**BODIES[endpoint], "stream": stream}
            )
            assert status == 200
            assert "Hello" in str(body)
            assert isinstance(body, str) is stream
        assert session.delivered_ids == ["turn_1"]
        assert [*session.requests[0].messages] == [USER]
        assert not session.requests[0].is_retry

    asyncio.run(run())


@pytest.mark.parametrize(
    "path", ["/v1/messages?beta=true", "/messages", "/v1/messages/", "//v1/messages"], ids=lambda path: path
)
def test_paths_as_clients_write_them(path):
    async def run():
        async with served(ScriptedSession()) as (address, client):
            assert (await post(client, f"{address.base_url}{path}", BODIES["messages"]))[0] == 200

    asyncio.run(run())


@pytest.mark.parametrize(("count", "is_retry"), [("0", False), ("1", True)])
def test_repetitions_are_marked(count, is_retry):
    async def run():
        session = ScriptedSession()
        async with served(session) as (address, client):
            headers = {"x-stainless-retry-count": count}
            await post(client, f"{address.base_url}/v1/messages", BODIES["messages"], headers=headers)
        assert session.requests[0].is_retry is is_retry

    asyncio.run(run())


def test_counting_tokens_and_models():
    async def run():
        async with served(ScriptedSession(), model_name="tiny") as (address, client):
            url = address.openai_base_url
            assert await post(client, f"{url}/messages/count_tokens", {"messages": [USER]}) == (
                200,
                {"input_tokens": 42},
            )
            async with client.get(f"{url}/models") as response:
                body = await response.json()
            assert [(model["id"], model["object"], model["type"]) for model in body["data"]] == [
                ("tiny", "model", "model")
            ]
            async with client.get(f"{url}/models/org/name") as response:
                assert (await response.json())["id"] == "org/name"
            for path in ("", "/", "/v1"):
                async with client.head(f"{address.base_url}{path}") as response:
                    assert response.status == 200

    asyncio.run(run())


@ENDPOINTS
def test_requests_run_at_the_same_time(endpoint):
    async def run():
        session = ScriptedSession(gate=asyncio.Event())
        async with served(session) as (address, client):
            url = f"{address.openai_base_url}/{endpoint}"
            first, second = (asyncio.create_task(post(client, url, BODIES[endpoint])) for _ in range(2))
            await session.asked.acquire()
            await session.asked.acquire()
            session.gate.set()
            ids = {str(body["id"]).partition("_")[2] for _, body in (await first, await second)}
        assert len(ids) == 2
        assert sorted(session.delivered_ids) == ["turn_1", "turn_2"]

    asyncio.run(run())


# -- keys and callers


@ENDPOINTS
@pytest.mark.parametrize("header", ["Authorization: Bearer {}", "authorization: bearer {}", "X-Api-Key: {}"])
def test_the_key_is_the_api_key(endpoint, header):
    async def run():
        async with served(ScriptedSession()) as (address, client):
            name, _, value = header.format(address.key).partition(": ")
            url = f"{address.base_url.partition('/s/')[0]}/v1/{endpoint}"
            assert (await post(client, url, BODIES[endpoint], headers={name: value}))[0] == 200
            status, body = await post(client, url, BODIES[endpoint], headers={name: value + "x"})
            assert (status, error_code(endpoint, body)) == (401, KEY_CODES[endpoint])

    asyncio.run(run())


KEY_CODES = {
    "chat/completions": "invalid_api_key",
    "responses": "invalid_api_key",
    "messages": "authentication_error",
    "messages/count_tokens": "authentication_error",
}


@pytest.mark.parametrize("endpoint", KEY_CODES)
def test_an_unknown_key_and_that_of_an_ended_rollout_are_refused(endpoint):
    async def run():
        async with GatewayServer() as server, aiohttp.ClientSession() as client:
            ended = server.open(ScriptedSession())
            await server.close(ended)
            await server.close(ended)
            root = ended.base_url.partition("/s/")[0]
            for url in (ended.base_url, f"{root}/s/guess", f"{root}/s/", root, f"{ended.base_url}x"):
                status, body = await post(client, f"{url}/v1/{endpoint}", {})
                assert (status, error_code(endpoint, body)) == (401, KEY_CODES[endpoint])
                assert ended.key not in str(body)

    asyncio.run(run())


def test_each_key_reaches_its_own_session():
    async def run():
        sessions = [ScriptedSession(), ScriptedSession()]
        async with GatewayServer() as server, aiohttp.ClientSession() as client:
            addresses = [server.open(session) for session in sessions]
            assert addresses[0].key != addresses[1].key
            assert all(len(address.key) >= 43 for address in addresses)
            # the key in the path counts, whatever API key a program has
            headers = {"authorization": f"Bearer {addresses[0].key}"}
            await post(client, f"{addresses[1].base_url}/v1/messages", BODIES["messages"], headers=headers)
        assert [len(session.requests) for session in sessions] == [0, 1]

    asyncio.run(run())


def test_keys_are_in_no_log_and_no_repr(caplog, capfd):
    caplog.set_level(logging.DEBUG)

    async def run():
        async with served(ScriptedSession(error=RuntimeError("bug"))) as (address, client):
            assert address.key not in repr(address)
            host, port = re.findall(r"//(.*):(\d+)/", address.base_url)[0]
            _, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET /s/{address.key}/v1 HTTP/9.9.9\r\n\r\n".encode())
            await writer.drain()
            await post(client, f"{address.base_url}/v1/messages", BODIES["messages"])
            writer.close()
            return address.key

    with pytest.raises(RuntimeError, match="bug"):
        asyncio.run(run())
    assert "/s/" not in caplog.text
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8000"])
def test_requests_of_web_pages_are_refused(origin):
    async def run():
        session = ScriptedSession()
        async with served(session) as (address, client):
            for endpoint, body in BODIES.items():
                url = f"{address.base_url}/v1/{endpoint}"
                status, answer = await post(client, url, body, headers={"origin": origin})
                assert status == 403
                assert error_code(endpoint, answer) in ("forbidden_origin", "permission_error")
        assert session.requests == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example", 403), ("[", 403), ("127.0.0.2", 403), ("localhost:1", 200), ("127.0.0.1", 200)],
)
def test_other_host_names_are_refused(host, status):
    async def run():
        async with served(ScriptedSession()) as (address, client):
            return (await post(client, f"{address.base_url}/v1/messages", BODIES["messages"], headers={"host": host}))[
                0
            ]

    assert asyncio.run(run()) == status


def test_a_public_address():
    async def run():
        session = ScriptedSession()
        async with GatewayServer(public_url="https://gate.example/x/") as server, aiohttp.ClientSession() as client:
            address = server.open(session)
            assert address.base_url == f"https://gate.example/x/s/{address.key}"
            url = f"{server.local_url}/s/{address.key}/v1/messages"
            for host, expected in (("gate.example", 200), ("localhost", 200), ("evil.example", 403)):
                status, _ = await post(client, url, BODIES["messages"], headers={"host": host})
                assert status == expected

    asyncio.run(run())


# -- errors


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1/chat", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/messages", 405),
        ("POST", "/v1/models", 405),
        ("OPTIONS", "/v1/responses", 405),
    ],
)
def test_other_paths_and_methods(method, path, status):
    async def run():
        async with served(ScriptedSession()) as (address, client):
            async with client.request(method, f"{address.base_url}{path}") as response:
                assert response.status == status
                text = await response.text()
            assert "endpoint" in text or "use POST" in text or "use GET" in text
            assert address.key not in text

    asyncio.run(run())


@ENDPOINTS
@STREAMED
@pytest.mark.parametrize(
    ("refusal", "status"),
    [(Refusal.INVALID, 400), (Refusal.TOO_LONG, 400), (Refusal.ENDED, 400), (Refusal.FAILED, 500)],
)
def test_a_refusal_has_its_status(endpoint, stream, refusal, status):
    async def run():
        session = ScriptedSession(error=RequestError(refusal, "because of this"))
        async with served(session) as (address, client):
            url = f"{address.base_url}/v1/{endpoint}"
            got, body = await post(client, url, {**BODIES[endpoint], "stream": stream})
            assert got == status
            assert "because of this" in body["error"]["message"]
        assert session.delivered_ids == []

    asyncio.run(run())


@ENDPOINTS
def test_malformed_requests_are_not_asked(endpoint):
    async def run():
        session = ScriptedSession()
        async with served(session) as (address, client):
            url = f"{address.base_url}/v1/{endpoint}"
            for data in (b"", b"{", b"[]", b'{"model": 5}'):
                async with client.post(url, data=data) as response:
                    assert response.status == 400
                    assert error_code(endpoint, await response.json())
        assert session.requests == []

    asyncio.run(run())


def test_large_and_compressed_bodies():
    async def run():
        session = ScriptedSession()
        async with served(session, max_bytes=1000) as (address, client):
            url, packed = f"{address.base_url}/v1/messages", {"content-encoding": "gzip"}
            status, body = await post(client, url, {**BODIES["messages"], "metadata": "x" * 1000})
            assert (status, body["error"]["type"]) == (413, "request_too_large")
            for data, expected in (
                (gzip.compress(json.dumps(BODIES["messages"]).encode()), 200),
                (gzip.compress(b"[" * 2000), 413),
                (b"no gzip", 400),
            ):
                async with client.post(url, data=data, headers=packed) as response:
                    assert response.status == expected
        assert len(session.requests) == 1

    asyncio.run(run())


@STREAMED
@pytest.mark.parametrize("error", [RuntimeError("our mistake"), ConnectionResetError("no engine")], ids=["bug", "gone"])
def test_a_bug_is_an_error_for_the_client_and_is_raised_at_the_end(stream, error):
    async def run():
        async with served(ScriptedSession(error=error)) as (address, client):
            url = f"{address.base_url}/v1/messages"
            status, body = await post(client, url, {**BODIES["messages"], "stream": stream})
            assert (status, body["error"]["type"]) == (500, "api_error")
            assert str(error) not in str(body)

    with pytest.raises(type(error), match=str(error)):
        asyncio.run(run())


def test_a_bug_in_what_follows_an_answer_is_raised_at_the_end():
    class Broken(ScriptedSession):
        def delivered(self, turn_id):
            raise RuntimeError(turn_id)

    async def run():
        async with served(Broken()) as (address, client):
            assert (await post(client, f"{address.base_url}/v1/messages", BODIES["messages"]))[0] == 200

    with pytest.raises(RuntimeError, match="turn_1"):
        asyncio.run(run())


def test_a_bug_in_counting_is_raised_at_the_end():
    async def run():
        async with served(ScriptedSession(error=RuntimeError("bug"))) as (address, client):
            url = f"{address.base_url}/v1/messages/count_tokens"
            assert (await post(client, url, BODIES["messages"]))[0] == 500

    with pytest.raises(RuntimeError, match="bug"):
        asyncio.run(run())


# -- streams


@ENDPOINTS
def test_a_stream_shows_signs_of_life_until_the_answer(endpoint):
    async def run():
        session = ScriptedSession(gate=asyncio.Event())
        async with served(session, keep_alive_s=0) as (address, client):
            body = {**BODIES[endpoint], "stream": True}
            async with client.post(f"{address.base_url}/v1/{endpoint}", json=body) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                assert (await response.content.readuntil(b"\n\n")).startswith(KEEP_ALIVE[endpoint])
                session.gate.set()
                assert b"Hello" in await response.content.read()
        assert session.delivered_ids == ["turn_1"]

    asyncio.run(run())


@ENDPOINTS
@pytest.mark.parametrize("error", [RequestError(Refusal.ENDED, "limit reached"), RuntimeError("bug")])
def test_an_error_in_a_stream_has_the_dialects_form(endpoint, error):
    async def run():
        session = ScriptedSession(gate=asyncio.Event(), error=error)
        async with GatewayServer(keep_alive_s=0) as server, aiohttp.ClientSession() as client:
            url = f"{server.open(session).base_url}/v1/{endpoint}"
            async with client.post(url, json={**BODIES[endpoint], "stream": True}) as response:
                assert await response.content.readuntil(b"\n\n")
                session.gate.set()
                rest = await response.content.read()
        last = json.loads(rest.rstrip().split(b"data: ")[-1])
        expected = "limit reached" if isinstance(error, RequestError) else "the gateway failed"
        assert expected in str(last.get("response", last)["error"]["message"])
        assert session.delivered_ids == []

    asyncio.run(run())


@STREAMED
def test_a_client_that_goes_away_has_no_answer(stream):
    async def run():
        session = ScriptedSession(gate=asyncio.Event())
        async with served(session) as (address, client):
            url = f"{address.base_url}/v1/messages"
            request = asyncio.create_task(post(client, url, {**BODIES["messages"], "stream": stream}))
            await session.asked.acquire()
            request.cancel()
            await session.cancelled.wait()
        assert session.delivered_ids == []

    asyncio.run(run())


@STREAMED
def test_an_answer_that_is_cut_off_is_not_delivered(stream):
    """The client reads the beginning of a long answer and closes the connection."""
    long = TurnAnswer("", "x" * 2**25)

    async def run():
        session = ScriptedSession(answer_with=lambda request: long)
        async with served(session) as (address, client):
            url = f"{address.base_url}/v1/chat/completions"
            body = {**BODIES["chat/completions"], "stream": stream}
            async with client.post(url, json=body) as response:
                assert await response.content.readexactly(1000)
                response.close()
            assert (await post(client, f"{address.base_url}/v1/messages/count_tokens", BODIES["messages"]))[0] == 200
        assert session.delivered_ids == []

    asyncio.run(run())


# -- the life of a server


@ENDPOINTS
def test_the_end_of_a_rollout_ends_its_requests(endpoint):
    async def run():
        session, other = ScriptedSession(gate=asyncio.Event()), ScriptedSession()
        async with GatewayServer() as server, aiohttp.ClientSession() as client:
            address, second = server.open(session), server.open(other)
            url = f"{address.base_url}/v1/{endpoint}"
            request = asyncio.create_task(post(client, url, BODIES[endpoint]))
            await session.asked.acquire()
            await server.close(address)
            status, body = await request
            assert (status, body["error"]["message"]) == (400, "the rollout has ended")
            assert session.cancelled.is_set()
            assert (await post(client, f"{second.base_url}/v1/{endpoint}", BODIES[endpoint]))[0] == 200

    asyncio.run(run())


def test_one_server_for_all_rollouts_while_one_is_open():
    async def run():
        shared = SharedServer()
        async with aiohttp.ClientSession() as client:
            async with shared.address(ScriptedSession()) as first:
                async with shared.address(ScriptedSession()) as second:
                    assert second.base_url.partition("/s/")[0] == first.base_url.partition("/s/")[0]
                assert (await post(client, f"{second.base_url}/v1/messages", BODIES["messages"]))[0] == 401
                assert (await post(client, f"{first.base_url}/v1/messages", BODIES["messages"]))[0] == 200
            with pytest.raises(aiohttp.ClientConnectionError):
                await post(client, f"{first.base_url}/v1/messages", BODIES["messages"])
            async with shared.address(ScriptedSession()) as third:
                assert (await post(client, f"{third.base_url}/v1/messages", BODIES["messages"]))[0] == 200

    asyncio.run(run())


def test_rollouts_that_start_and_end_together_share_a_server():
    started = []

    def make():
        started.append(GatewayServer())
        return started[-1]

    async def rollout(shared, client):
        async with shared.address(ScriptedSession()) as address:
            return (await post(client, f"{address.base_url}/v1/messages", BODIES["messages"]))[0]

    async def run():
        shared = SharedServer(make)
        async with aiohttp.ClientSession() as client:
            for number in (1, 2):
                assert await asyncio.gather(*(rollout(shared, client) for _ in range(32))) == [200] * 32
                assert len(started) == number

    asyncio.run(run())


def test_a_shared_server_ends_with_its_last_rollout_also_after_a_bug():
    async def run():
        shared = SharedServer()
        with pytest.raises(RuntimeError, match="bug"):
            async with (
                shared.address(ScriptedSession(error=RuntimeError("bug"))) as first,
                aiohttp.ClientSession() as client,
            ):
                assert (await post(client, f"{first.base_url}/v1/messages", BODIES["messages"]))[0] == 500
        async with aiohttp.ClientSession() as client:
            with pytest.raises(aiohttp.ClientConnectionError):
                await post(client, f"{first.base_url}/v1/messages", BODIES["messages"])

    asyncio.run(run())


def test_a_port_in_use():
    async def run():
        async with GatewayServer() as server:
            port = int(server.local_url.rpartition(":")[2])
            with pytest.raises(AgentRLError, match=f"cannot listen on 127.0.0.1:{port}: "):
                await GatewayServer(port=port).__aenter__()

    asyncio.run(run())


def test_the_scripted_answer_has_all_parts():
    assert all((ANSWER.content, ANSWER.thinking, ANSWER.calls))
