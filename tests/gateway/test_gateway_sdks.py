"""OpenAI's and Anthropic's SDKs, in environments of their own, against the gateway."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from scripted_session import ScriptedSession

from agentrl.gateway.base import AnswerCall, Finish, Refusal, RequestError, TurnAnswer, TurnRequest
from agentrl.gateway.server import GatewayServer
from agentrl.types.messages import message_text

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks/peers/sdk_conversations.py"
VERSIONS = {"sdks": ["3.54.0", "2.12.0"], "sdks_before": ["2.54.0", "0.125.0"]}
ARGUMENTS = '{"b":  3 ,"a": 2.0}'
TURN = TurnAnswer("", "Text", "Thoughts", num_prompt_tokens=10, num_cached_tokens=4, num_tokens=5)
LONG = replace(TURN, content="x" * 2**25)
CALLS = [
    ("add", ARGUMENTS, ""),
    ("patch", '{"input": "+1"}', ""),
    ("add", '{"a": ', "not JSON"),
    ("", "<x>", "no name"),
]


class Conversations(ScriptedSession):
    """Does what the last message says. A request that fails once is answered when the SDK repeats it."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: Counter[str] = Counter()

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        self.requests.append(request)
        text = message_text(request.messages[-1], lambda part: "")
        turn_id = f"turn_{len(self.requests)}"
        for _ in range(20):  # a gateway without patience sends signs of life
            await asyncio.sleep(0)
        if text in ("too long", "ended", "always fails"):
            raise RequestError({"too long": Refusal.TOO_LONG, "ended": Refusal.ENDED}.get(text, Refusal.FAILED), text)
        if text == "fails once" and not request.is_retry:
            raise RequestError(Refusal.FAILED, text)
        if text == "long":
            return replace(LONG, turn_id=f"long_{turn_id}")
        if text == "call":
            tools = {tool.name for tool in request.tools}
            calls = [
                AnswerCall(f"call_{turn_id}_{at}", *call) for at, call in enumerate(CALLS) if call[0] in (*tools, "")
            ]
            return replace(TURN, turn_id=turn_id, calls=tuple(calls), finish=Finish.CALLS)
        return replace(TURN, turn_id=turn_id, content=f"Text {len(request.images)}", finish=Finish.STOP)


def png() -> bytes:
    file = BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, "PNG")
    return file.getvalue()


async def found_by(python: Path, folder: Path) -> tuple[dict, Conversations]:
    session = Conversations()
    async with GatewayServer() as server, GatewayServer(keep_alive_s=0) as slow:
        address = server.open(session)
        questions = {
            "url": address.base_url,
            "slow_url": slow.open(session).base_url,
            "wrong_url": f"{server.local_url}/s/wrong",
            "png": b64encode(png()).decode(),
        }
        (folder / "questions.json").write_text(json.dumps(questions))
        command = [str(python), str(SCRIPT), str(folder / "questions.json")]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
        assert process.returncode == 0
        await server.close(address)
    return json.loads(printed), session


@pytest.fixture(scope="module", params=["sdks", pytest.param("sdks_before", marks=pytest.mark.nightly)])
def found(request, tmp_path_factory):
    """What the SDKs made of the answers, and the session that they asked."""
    with pytest.MonkeyPatch.context() as patch:
        python = peer(request.param, patch)
        results, session = asyncio.run(found_by(python, tmp_path_factory.mktemp("sdks")))
    assert results["versions"] == VERSIONS[request.param]
    return results, session


def peer(name: str, patch: pytest.MonkeyPatch) -> Path:
    patch.syspath_prepend(str(SCRIPT.parent))
    import environment

    return environment.peer_python(name)


URLS = pytest.mark.parametrize("url", ["url", "slow_url"])


@URLS
@pytest.mark.parametrize(
    "name", ["chat", "chat stream", "responses", "responses stream", "messages", "messages stream"]
)
def test_a_conversation_with_calls(found, url, name):
    first, second = found[0][f"{url} {name}"]
    assert (first["content"], first["thoughts"], first["model"]) == ("Text", "Thoughts", "m")
    assert (first["tokens"], second["tokens"]) == ([10, 5], [10, 5])
    assert (second["content"], second["calls"]) == ("Text 0", [])
    kind = name.removesuffix(" stream")
    finish = {"chat": ["tool_calls", "stop"], "responses": ["completed"] * 2, "messages": ["tool_use", "end_turn"]}
    assert [first["finish"], second["finish"]] == finish[kind]
    assert [call[1:] for call in first["calls"]] == EXPECTED[kind]
    assert len({call[0] for call in first["calls"]}) == len(EXPECTED[kind])


EXPECTED = {
    "chat": [["add", ARGUMENTS], ["add", '{"a": '], ["invalid_call", "<x>"]],
    "responses": [["add", ARGUMENTS], ["patch", "+1"], ["add", '{"a": '], ["invalid_call", "<x>"]],
    "messages": [["add", {"b": 3, "a": 2.0}], ["add", {"malformed": '{"a": '}], ["invalid_call", {"malformed": "<x>"}]],
}


def test_the_turns_id_is_sent_as_encrypted_content_if_asked(found):
    assert found[0]["url responses"][0]["turn"].startswith("turn_")
    assert found[0]["url responses stream"][0]["turn"] is None


@URLS
def test_images_models_and_counts(found, url):
    results = found[0]
    assert [results[f"{url} {name} image"] for name in ("chat", "responses", "messages")] == ["Text 1"] * 3
    assert results[f"{url} models"] == ["policy", "org/other"]
    assert results[f"{url} about"] == [42, "policy"]
    assert results[f"{url} beta messages"]["calls"][0][1:] == ["add", {"b": 3, "a": 2.0}]


@URLS
def test_failed_requests_are_repeated_and_marked(found, url):
    results, session = found
    for name in ("chat", "responses", "messages"):
        assert results[f"{url} {name} repeats"]["content"] == "Text 0"
    asked = [request.is_retry for request in session.requests if request.messages[-1]["content"] == "fails once"]
    assert asked == [False, True] * 6


def test_errors_are_those_of_the_services(found):
    results = found[0]
    assert results["url chat errors"] == [
        ["AuthenticationError", 401, "invalid_api_key"],
        ["BadRequestError", 400, "context_length_exceeded"],
        ["BadRequestError", 400, "rollout_ended"],
        ["BadRequestError", 400, "invalid_value"],
        ["InternalServerError", 500, "server_error"],
    ]
    assert results["url responses errors"] == [
        ["BadRequestError", 400, "context_length_exceeded"],
        ["BadRequestError", 400, "invalid_value"],
    ]
    assert results["url messages errors"] == [
        ["AuthenticationError", 401, "authentication_error"],
        ["BadRequestError", 400, "invalid_request_error"],
        ["InternalServerError", 500, "api_error"],
    ]
    assert results["url responses failed stream"] == ["BadRequestError", 400, "rollout_ended"]
    assert results["url messages failed stream"] == ["BadRequestError", 400, "invalid_request_error"]


def test_errors_after_the_beginning_of_a_stream(found):
    results = found[0]
    assert results["slow_url chat errors"][2] == ["APIError", None, "rollout_ended"]
    assert results["slow_url messages failed stream"][2] == "invalid_request_error"
    assert results["slow_url responses failed stream"] == ["no error"]  # the SDK yields the event `response.failed`


def test_an_answer_that_the_client_cuts_off_is_not_delivered(found):
    results, session = found
    assert (results["url closes early"], results["slow_url closes early"]) == (200, 200)
    assert [name for name in session.delivered_ids if name.startswith("long")] == []
    assert len(session.delivered_ids) == len(set(session.delivered_ids))
