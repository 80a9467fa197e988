"""Calls of tools of MCP servers over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from mcp_builders import calls_in, load, run, toolbox
from raw_http_server import serving
from tool_builders import call, task

from agentrl.errors import ConfigError
from agentrl.types.rollout import Outcome

SDK_SERVER = Path(__file__).parent / "sdk_server.py"


@pytest.fixture
def server():
    with serving() as started:
        yield started


def entry(server, **keys):
    return {"mcp": {"name": "web", "url": server.url, "headers": {"X-Key": "key-of-the-test"}}, **keys}


def test_a_rollout_has_its_own_session_which_is_closed(server, tmp_path):
    tools = load(tmp_path, entry(server))
    assert not server.sessions  # the listing closed its own

    async def main():
        async with toolbox(tools) as box:
            results = await asyncio.gather(*(calls_in(box, call("count"), call("count")) for _ in range(3)))
        return [[result.text for result in each] for each in results], box.metrics()

    texts, metrics = asyncio.run(main())
    assert texts == [["1", "2"]] * 3
    assert metrics["mcp_sessions_opened"] == 3
    assert not server.sessions
    assert server.seen.count("server/discover") == 1  # later sessions know the handshake


@pytest.mark.slow
def test_a_shared_session_serves_many_calls_at_once(server, tmp_path):
    tools = load(tmp_path, entry(server, sessions="shared"))

    async def main():
        async with toolbox(tools) as box:
            results = await asyncio.gather(*(calls_in(box, call("echo", n=n)) for n in range(30)))
        return [json.loads(result.text)["n"] for (result,) in results], box.metrics()

    numbers, metrics = asyncio.run(main())
    assert numbers == [*range(30)]
    assert metrics["mcp_sessions_opened"] == 1


def test_headers_are_sent_and_answers_must_not_be_compressed(server, tmp_path):
    (result,), _ = run(load(tmp_path, entry(server)), call("headers"))
    headers = {name.lower(): value for name, value in json.loads(result.text).items()}
    assert (headers["x-key"], headers["accept-encoding"]) == ("key-of-the-test", "identity")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("tool", "outcome", "text"),
    [
        ("event", Outcome.OK, "an event"),
        ("fails", Outcome.TOOL_ERROR, "Error: no"),
        ("status", Outcome.INFRA_ERROR, "it answered with an error: Server returned an error response"),
        ("redirect", Outcome.INFRA_ERROR, "Redirect to http://127.0.0.1:9/elsewhere not followed"),
        ("html", Outcome.INFRA_ERROR, "Unexpected content type: text/html"),
        ("huge", Outcome.INFRA_ERROR, "MCP server 'web'"),
        ("huge_event", Outcome.INFRA_ERROR, "SSE stream failed"),
        ("compressed", Outcome.INFRA_ERROR, "MCP server 'web'"),
        ("cut", Outcome.INFRA_ERROR, "MCP server 'web'"),
    ],
)
def test_what_a_server_answers_has_an_outcome_and_the_next_call_works(server, tmp_path, tool, outcome, text):
    results, _ = run(load(tmp_path, entry(server)), call(tool), call("echo", a=1))
    assert results[0].outcome == outcome, results[0].text
    assert text in results[0].text
    assert len(results[0].text) < 1000
    assert results[1].text == '{"a": 1}'


def test_a_call_without_an_answer_times_out_and_is_cancelled_on_the_server(server, tmp_path):
    results, metrics = run(load(tmp_path, entry(server, timeout_s=0.3)), call("silent"), call("echo"))
    assert [result.outcome for result in results] == [Outcome.TIMEOUT, Outcome.OK]
    assert len(server.cancelled) == 1
    assert metrics["mcp_sessions_opened"] == 1


def test_a_session_that_the_server_forgot_is_opened_again(server, tmp_path):
    async def main():
        async with toolbox(load(tmp_path, entry(server))) as box, box.session(task()) as session:
            first = await session.call(call("count"))
            server.sessions.clear()
            return [first, *[await session.call(call("count")) for _ in range(2)]], box.metrics()

    results, metrics = asyncio.run(main())
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.INFRA_ERROR, Outcome.OK]
    assert metrics["mcp_sessions_reopened"] == 1


def test_a_server_that_is_gone_is_an_infrastructure_failure(tmp_path):
    async def main():
        with serving() as server:
            tools = load(tmp_path, entry(server))
        async with toolbox(tools) as box:
            return await calls_in(box, call("echo"))

    (result,) = asyncio.run(main())
    assert result.outcome == Outcome.INFRA_ERROR
    assert "MCP server 'web': it did not start: ConnectError" in result.text


def test_cookies_do_not_reach_another_rollout(server, tmp_path):
    async def main():
        async with toolbox(load(tmp_path, entry(server))) as box:
            return [[result.text for result in await calls_in(box, *[call("cookie")] * 2)] for _ in range(2)]

    assert asyncio.run(main()) == [["none", "seen=yes"]] * 2


def test_a_wrong_key_is_refused_at_the_start_without_showing_it(tmp_path, server):
    server.sessions = _Refusing()
    with pytest.raises(ConfigError, match="MCP server 'web'") as caught:
        load(tmp_path, entry(server))
    assert "key-of-the-test" not in str(caught.value)


class _Refusing(dict):
    """Forgets every session at once."""

    def __setitem__(self, key, value):
        pass


@pytest.fixture(params=["http", "sse"])
def sdk_server(request):
    """A server of the SDK in a process of its own, over each transport."""
    command = [sys.executable, str(SDK_SERVER), request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield {"name": "sdk", "type": request.param, "url": process.stdout.readline().strip()}
        finally:
            process.kill()


@pytest.mark.slow
def test_a_server_of_the_sdk(sdk_server, tmp_path):
    tools = load(tmp_path, {"mcp": sdk_server, "timeout_s": 0.5})
    results, _ = run(
        tools, call("add", a=2, b=3), call("picture"), call("add", a="x"), call("sleeps"), call("add", a=1)
    )
    assert [result.outcome for result in results] == [
        *(Outcome.OK, Outcome.OK, Outcome.FORMAT_ERROR, Outcome.TIMEOUT, Outcome.OK)
    ]
    assert [results[0].text, results[4].text] == ["5", "1"]
    assert results[1].images[0][:4] == b"\x89PNG"
