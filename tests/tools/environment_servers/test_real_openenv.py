"""The package openenv: its servers answer as the fake one, and agentrl trains on them."""

from __future__ import annotations

import asyncio
import json
import subprocess

import aiohttp
import pytest
from fake_openenv import fake_openenv
from peer_environments import ROOT, peer_python, running_server
from server_builders import loaded, play, target
from tool_builders import call, task

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples/environment_servers/guess_server.py"


def step(**action):
    return {"type": "step", "data": action}


def reset(**data):
    return {"type": "reset", "data": data}


GAME = [
    *(reset(seed=3), step(guess=1), step(guess="x"), step(), step(guess=-1), step(guess=4), step(guess=4)),
    *(reset(seed=4, low=2), step(guess=9), reset(low="x"), {"type": "nothing"}),
]
LISTED = [
    *(step(type="list_tools"), reset(seed=3), step(type="call_tool", tool_name="add", arguments={"a": 1, "b": 2})),
    step(type="call_tool", tool_name="add", arguments={"a": 13, "b": 2}),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    command = [peer_python("openenv"), EXAMPLE, "PORT", 1]
    with running_server(command, "/schema", tmp_path_factory.mktemp("openenv")) as url:
        yield url


@pytest.fixture(scope="module")
def real_listed(tmp_path_factory):
    command = [peer_python("openenv"), EXAMPLE, "PORT", 1]
    with running_server(command, "/schema", tmp_path_factory.mktemp("listed"), GAME="listed") as url:
        yield url


async def conversation(url, messages):
    """The answers to messages, and what a second connection gets meanwhile."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/schema") as answer:
        schema = (await answer.json())["action"]
        async with session.ws_connect(f"{url}/ws") as socket:
            answers = [await asked(socket, message) for message in messages]
            async with session.ws_connect(f"{url}/ws") as second:
                answers.append(await asked(second, messages[0]))
                closed = await second.receive()
            await socket.send_str('{"type": "close"}')
            return schema, answers, (closed.type, closed.data), (await socket.receive()).data


async def asked(socket, message):
    await socket.send_str(json.dumps(message))
    return json.loads((await socket.receive()).data)


def compared(answer):
    """An answer without the wording of errors."""
    data = answer["data"]
    if answer["type"] == "error":
        places = [each["loc"] for each in data.get("errors", ())][:1]
        return data["code"], places, data["message"] if data["code"] == "EXECUTION_ERROR" else ""
    if "result" in data["observation"]:
        result = data["observation"]["result"] or {}
        texts = [part["text"] for part in result.get("content", ())]
        return data["observation"]["error"], texts, result.get("is_error"), data["reward"], data["done"]
    return data


@pytest.mark.parametrize(("listed", "messages"), [(False, GAME), (True, LISTED)])
def test_the_fake_server_answers_as_the_real_one(request, listed, messages):
    url = request.getfixturevalue("real_listed" if listed else "real")
    schema, answers, closed, end = asyncio.run(conversation(url, messages))
    with fake_openenv(lists_tools=listed, max_sessions=1) as (fake_url, _):
        fake_schema, fake_answers, fake_closed, fake_end = asyncio.run(conversation(fake_url, messages))
    assert list(map(compared, fake_answers)) == list(map(compared, answers))
    assert (fake_closed, fake_end) == (closed, end)
    assert fake_schema["properties"].keys() == schema["properties"].keys()
    assert fake_schema["required"] == schema["required"]


def test_a_rollout(real, tmp_path):
    calls = [call("guess", guess=number) for number in (1, -1, 5, 6, 7, 8, 9, 2, 3, 4)]
    environment = target(tmp_path, openenv=real, tool="guess", observation="message", reset=["low"])
    played = play(environment, *calls, row=task(uid="u", extra_info={"low": 1}))
    assert played.text == "\n\nGuess a number from 1 to 9."
    assert played.outcomes[1] == ("tool_error", "Error: the guess is negative")
    assert ("ok", "right") in played.outcomes
    assert played.ended
    assert played.rewards == {"world": pytest.approx(sum(each.reward for each in played.results))}


def test_rollouts_one_after_another_share_the_only_session(real):
    for uid in "abc":
        assert play(f"openenv:{real}", call("step", guess=1), row=task(uid=uid)).results


def test_listed_tools(real_listed):
    played = play(f"openenv:{real_listed}", call("add", a=1, b=2), call("add", a=13, b=0))
    assert played.text == ""
    assert played.outcomes == [("ok", "3"), ("tool_error", "Error: Error calling tool 'add': 13 is bad luck")]


def test_a_new_environment_of_openenv(tmp_path):
    """`openenv init` and `uvicorn server.app:app`, as on the page."""
    python = peer_python("openenv")
    subprocess.run([python.parent / "openenv", "init", "guessing"], cwd=tmp_path, check=True, capture_output=True)
    command = [python, "-m", "uvicorn", "server.app:app", "--port", "PORT"]
    with running_server(command, "/schema", tmp_path / "guessing", HOME=str(tmp_path)) as url:
        (schema,) = loaded(f"openenv:{url}").schemas
        played = play(f"openenv:{url}", call("step", message="four"))
    assert [*schema.function.parameters["properties"]] == ["message"]
    assert json.loads(played.results[0].text)["echoed_message"] == "four"
    assert played.rewards == {"openenv": pytest.approx(0.4)}
