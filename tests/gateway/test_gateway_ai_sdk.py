"""The AI SDK of Vercel, which coding agents on npm use, against the gateway. It checks every event by a schema."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_session import ANSWER, ScriptedSession

from agentrl.gateway.base import AnswerCall, Finish, TurnAnswer, TurnRequest
from agentrl.gateway.server import GatewayServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks/peers/ai_sdk_conversations.mjs"
FOLDER = ROOT / ".cache/peers/ai_sdk"
PACKAGES = (
    "ai@6.0.326",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/openai-compatible@2.0.92",
    "@ai-sdk/anthropic@3.0.140",
    "zod@4.6.7",
)
CALLS = (("add", '{"a":  2.0}', ""), ("add", '{"a": ', "not JSON"), ("", "<x>", "no name"))


def turn(request: TurnRequest) -> TurnAnswer:
    if request.messages[-1]["role"] == "tool":
        return replace(ANSWER, content="Done", calls=(), finish=Finish.STOP)
    calls = tuple(AnswerCall(f"call_{at}", *call) for at, call in enumerate(CALLS))
    return replace(ANSWER, calls=calls, finish=Finish.CALLS)


class Slow(ScriptedSession):
    """A gateway without patience sends signs of life before each of its answers."""

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().answer(request)


def install() -> None:
    if shutil.which("npm") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("npm is not installed: make node")
    FOLDER.mkdir(parents=True, exist_ok=True)
    install_command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", FOLDER, *PACKAGES]
    subprocess.run(install_command, check=True, capture_output=True)
    shutil.copy(SCRIPT, FOLDER)


async def conversations() -> tuple[dict, list[TurnRequest]]:
    sessions = ScriptedSession(answer_with=turn), Slow(answer_with=turn)
    async with GatewayServer() as server, GatewayServer(keep_alive_s=0) as slow:
        urls = [server.open(sessions[0]).base_url, slow.open(sessions[1]).base_url, f"{server.local_url}/s/wrong"]
        command = ["node", str(FOLDER / SCRIPT.name), *urls]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
        assert process.returncode == 0
    return json.loads(printed), [request for session in sessions for request in session.requests]


@pytest.fixture(scope="module")
def found():
    install()
    return asyncio.run(conversations())


@pytest.mark.parametrize("stream", ["", " stream"])
@pytest.mark.parametrize("name", ["responses", "chat", "compatible", "messages"])
@pytest.mark.parametrize("speed", ["fast", "slow"])
def test_turns_and_malformed_calls_are_read(found, speed, name, stream):
    first, second = found[0][f"{speed} {name}{stream}"]
    in_object = name == "messages"
    assert first["calls"] == [
        ["add", {"a": 2}, False],
        ["add", {"malformed": '{"a": '} if in_object else '{"a": ', True],
        ["invalid_call", {"malformed": "<x>"} if in_object else "<x>", True],
    ]
    thoughts = None if name == "chat" else "Thoughts"
    assert (first["text"], first["thoughts"], first["finishReason"]) == ("Hello", thoughts, "tool-calls")
    assert (second["text"], second["calls"], second["finishReason"]) == ("Done", [], "stop")
    assert first["tokens"] == second["tokens"] == [10, 5]


def test_the_turn_comes_back_as_one_message_with_its_ids(found):
    follow_ups = [request for request in found[1] if request.messages[-1]["role"] == "tool"]
    assert len(follow_ups) == 16
    for request in follow_ups:
        _, assistant, *results = request.messages
        assert (assistant["role"], assistant["content"]) == ("assistant", "Hello")
        ids = ["call_0", "call_1", "call_2"]
        assert [call["id"] for call in assistant["tool_calls"]] == ids
        assert [result["tool_call_id"] for result in results] == ids


def test_a_wrong_key(found):
    errors = [found[0][f"wrong {name}"] for name in ("responses", "chat", "compatible", "messages")]
    assert errors == [[401, "no such key, or its rollout has ended"]] * 4
