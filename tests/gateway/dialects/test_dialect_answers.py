"""Answers in each dialect: the same turn as JSON and as events, malformed calls, errors."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentrl.gateway.base import AnswerCall, Finish, Refusal, RequestError, TurnAnswer
from agentrl.gateway.dialects.base import failure_of
from agentrl.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from agentrl.gateway.dialects.chat_reply import ChatReply
from agentrl.gateway.dialects.messages import MESSAGES
from agentrl.gateway.dialects.messages_reply import MessagesReply
from agentrl.gateway.dialects.responses import RESPONSES
from agentrl.gateway.dialects.responses_reply import ResponsesReply

ARGUMENTS = '{"b":  3 ,"a": 2.0}'
WELL_FORMED = AnswerCall("call_1", "add", ARGUMENTS)
MALFORMED = AnswerCall("call_2", "add", '{"a": 1, "b": ', "not JSON")
NAMELESS = AnswerCall("call_3", "", "<tool_call>", "no name")
TURN = TurnAnswer("turn_1", "Hé  \n", "Thoughts", (WELL_FORMED, MALFORMED, NAMELESS), Finish.CALLS, 10, 4, 5)
PLAIN = TurnAnswer("turn_2", "Done", finish=Finish.STOP, num_prompt_tokens=3, num_tokens=1)
EMPTY = TurnAnswer("turn_3", "")
CUT = replace(PLAIN, finish=Finish.LENGTH)
TURNS = pytest.mark.parametrize("turn", [TURN, PLAIN, EMPTY, CUT], ids=["calls", "text", "empty", "cut"])

CHAT = ChatReply("policy", with_usage=True)
RESPONSE = ResponsesReply("policy", with_turn_id=True)
MESSAGE = MessagesReply("policy", with_thinking=True)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 5.5)


def events(sent: bytes) -> list[tuple[str, dict]]:
    """(name, data) of the events in a stream; the name is "" if it has none."""
    found = []
    for block in sent.decode().removesuffix("\n\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        assert lines.keys() <= {"event", "data"}
        if lines["data"] != "[DONE]":
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


# -- Chat Completions


def test_chat_answer():
    body = CHAT.body(TURN)
    assert {key: body[key] for key in ("id", "object", "created", "model")} == {
        "id": "chatcmpl-turn_1",
        "object": "chat.completion",
        "created": 5,
        "model": "policy",
    }
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hé  \n",
        "refusal": None,
        "reasoning_content": "Thoughts",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}},
            {"id": "call_2", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": '}},
            {"id": "call_3", "type": "function", "function": {"name": "invalid_call", "arguments": "<tool_call>"}},
        ],
    }
    assert body["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_chat_content_is_null_beside_calls_only():
    assert CHAT.body(replace(TURN, content=""))["choices"][0]["message"]["content"] is None
    assert CHAT.body(EMPTY)["choices"][0]["message"]["content"] == ""


@TURNS
def test_chat_events_add_up_to_the_answer(turn):
    sent = CHAT.events(turn)
    assert sent.endswith(b"data: [DONE]\n\n")
    *chunks, usage = [data for _, data in events(sent)]
    (expected,) = CHAT.body(turn)["choices"]
    message, finish = added_up(chunks)
    assert message == {
        "role": "assistant",
        "content": expected["message"]["content"] or "",
        **{key: expected["message"][key] for key in ("reasoning_content", "tool_calls") if key in expected["message"]},
    }
    assert finish == expected["finish_reason"]
    assert (usage["choices"], usage["usage"]) == ([], CHAT.body(turn)["usage"])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def added_up(chunks: list[dict]) -> tuple[dict, str | None]:
    message, finish = {"content": ""}, None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert finish is None
        finish = choice["finish_reason"]
        delta = choice["delta"]
        message["content"] += delta.pop("content", "")
        for call in delta.pop("tool_calls", []):
            assert call.pop("index") == len(message.setdefault("tool_calls", []))
            message["tool_calls"].append(call)
        message.update(delta)
    return message, finish


def test_chat_usage_is_sent_if_asked():
    assert all("usage" not in data for _, data in events(ChatReply("policy").events(TURN)))


@pytest.mark.parametrize(("finish", "reason"), [(Finish.STOP, "stop"), (Finish.LENGTH, "length")])
def test_chat_finish(finish, reason):
    assert CHAT.body(replace(PLAIN, finish=finish))["choices"][0]["finish_reason"] == reason


def test_chat_call_of_a_tool_whose_input_is_a_text():
    reply = ChatReply("policy", text_inputs=frozenset({"add"}))
    calls = (AnswerCall("call_1", "add", '{"input": "1+2"}'), MALFORMED)
    sent = reply.body(replace(TURN, calls=calls))["choices"][0]["message"]["tool_calls"]
    assert sent[0] == {"id": "call_1", "type": "custom", "custom": {"name": "add", "input": "1+2"}}
    assert sent[1]["custom"]["input"] == MALFORMED.arguments


# -- Responses


def test_responses_answer():
    body = RESPONSE.body(TURN)
    assert (body["id"], body["status"], body["incomplete_details"]) == ("resp_turn_1", "completed", None)
    thoughts, text, *calls = body["output"]
    assert (thoughts["summary"], thoughts["encrypted_content"]) == (
        [{"type": "summary_text", "text": "Thoughts"}],
        "turn_1",
    )
    assert text["content"] == [{"type": "output_text", "text": "Hé  \n", "annotations": [], "logprobs": []}]
    assert [(call["type"], call["call_id"], call["name"], call["arguments"]) for call in calls] == [
        ("function_call", "call_1", "add", ARGUMENTS),
        ("function_call", "call_2", "add", '{"a": 1, "b": '),
        ("function_call", "call_3", "invalid_call", "<tool_call>"),
    ]
    assert body["usage"]["input_tokens_details"] == {"cached_tokens": 4}
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"], body["usage"]["total_tokens"]) == (10, 5, 15)


def test_responses_turn_id_is_sent_if_asked():
    assert ResponsesReply("policy").body(TURN)["output"][0]["encrypted_content"] is None


def test_responses_cut_answer():
    body = RESPONSE.body(CUT)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert events(RESPONSE.events(CUT))[-1][0] == "response.incomplete"


@TURNS
def test_responses_events_add_up_to_the_answer(turn):
    sent = events(RESPONSE.events(turn))
    assert [data["sequence_number"] for _, data in sent] == [*range(len(sent))]
    assert all(name == data["type"] for name, data in sent)
    assert [name for name, _ in sent[:2]] == ["response.created", "response.in_progress"]
    body = RESPONSE.body(turn)
    assert sent[-1][1]["response"] == body
    done = [data["item"] for name, data in sent if name == "response.output_item.done"]
    assert done == body["output"]
    for index, item in enumerate(done):
        texts = [data for name, data in sent if name.endswith(".delta") and data["output_index"] == index]
        assert "".join(data["delta"] for data in texts) == item_text(item)
        assert {data["item_id"] for data in texts} <= {item["id"]}


def item_text(item: dict) -> str:
    if "arguments" in item:
        return item["arguments"]
    (part,) = item.get("content") or item["summary"]
    return part["text"]


def test_responses_event_names():
    names = [name.removeprefix("response.") for name, _ in events(RESPONSE.events(replace(TURN, calls=(WELL_FORMED,))))]
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_responses_call_of_a_tool_whose_input_is_a_text():
    reply = ResponsesReply("policy", text_inputs=frozenset({"add"}))
    turn = replace(TURN, content="", thinking="", calls=(AnswerCall("call_1", "add", '{"input": "1+2"}'), MALFORMED))
    items = reply.body(turn)["output"]
    assert [(item["type"], item["input"]) for item in items] == [
        ("custom_tool_call", "1+2"),
        ("custom_tool_call", MALFORMED.arguments),
    ]
    names = [name for name, _ in events(reply.events(turn))]
    assert "response.custom_tool_call_input.delta" in names
    assert "response.custom_tool_call_input.done" in names


def test_responses_call_of_a_tool_in_a_namespace():
    reply = ResponsesReply("policy", namespaces={"agents__add": ("agents", "add")})
    turn = replace(TURN, content="", thinking="", calls=(replace(WELL_FORMED, name="agents__add"), NAMELESS))
    items = reply.body(turn)["output"]
    assert [(item["name"], item.get("namespace")) for item in items] == [("add", "agents"), ("invalid_call", None)]
    done = [data["item"] for name, data in events(reply.events(turn)) if name == "response.output_item.done"]
    assert done == items


# -- Messages


def test_messages_answer():
    body = MESSAGE.body(TURN)
    assert (body["id"], body["type"], body["role"], body["stop_reason"]) == (
        "msg_turn_1",
        "message",
        "assistant",
        "tool_use",
    )
    assert body["content"] == [
        {"type": "thinking", "thinking": "Thoughts", "signature": "turn_1"},
        {"type": "text", "text": "Hé  \n"},
        {"type": "tool_use", "id": "call_1", "name": "add", "input": {"b": 3, "a": 2.0}},
        {"type": "tool_use", "id": "call_2", "name": "add", "input": {"malformed": '{"a": 1, "b": '}},
        {"type": "tool_use", "id": "call_3", "name": "invalid_call", "input": {"malformed": "<tool_call>"}},
    ]
    assert body["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 5,
    }


def test_messages_thoughts_are_sent_if_asked():
    assert MessagesReply("policy").body(TURN)["content"][0]["type"] == "text"
    assert "thinking" not in MessagesReply("policy").events(TURN).decode()


@pytest.mark.parametrize(("finish", "reason"), [(Finish.STOP, "end_turn"), (Finish.LENGTH, "max_tokens")])
def test_messages_finish(finish, reason):
    assert MESSAGE.body(replace(PLAIN, finish=finish))["stop_reason"] == reason


@TURNS
def test_messages_events_add_up_to_the_answer(turn):
    sent = events(MESSAGE.events(turn))
    assert all(name == data["type"] for name, data in sent)
    (_, start), *middle, (_, delta), (last, _) = sent
    blocks = []
    for name, data in middle:
        if name == "content_block_start":
            assert data["index"] == len(blocks)
            blocks.append({**data["content_block"], "json": ""})
        elif name == "content_block_delta":
            add_delta(blocks[-1], data["delta"])
    for block in blocks:
        if partial := block.pop("json"):
            block["input"] = json.loads(partial)
    message = {**start["message"], "content": blocks, "usage": delta["usage"], **delta["delta"]}
    assert message == MESSAGE.body(turn)
    assert last == "message_stop"
    assert [name for name, _ in middle].count("content_block_stop") == len(blocks)


def add_delta(block: dict, delta: dict) -> None:
    kind = delta.pop("type")
    ((key, text),) = delta.items()
    assert kind == {"partial_json": "input_json_delta"}.get(key, f"{key}_delta")
    block["json" if key == "partial_json" else key] += text


def test_numbers_that_json_libraries_refuse_are_sent():
    big = AnswerCall("call_1", "add", '{"a": 123456789012345678901234567890, "b": "\\ud83d"}')
    body = MESSAGE.events(replace(TURN, calls=(big,))).decode()
    assert "123456789012345678901234567890" in body


# -- errors

FAILURES = {refusal: failure_of(RequestError(refusal, "why")) for refusal in Refusal}


@pytest.mark.parametrize(
    ("refusal", "status", "code", "kind"),
    [
        (Refusal.INVALID, 400, "invalid_value", "invalid_request_error"),
        (Refusal.KEY, 401, "invalid_api_key", "authentication_error"),
        (Refusal.TOO_LONG, 400, "context_length_exceeded", "invalid_request_error"),
        (Refusal.ENDED, 400, "rollout_ended", "invalid_request_error"),
        (Refusal.FAILED, 500, "server_error", "api_error"),
    ],
)
def test_errors_are_as_the_services_have_them(refusal, status, code, kind):
    failure = FAILURES[refusal]
    assert failure.status == status
    for dialect in (CHAT_COMPLETIONS, RESPONSES):
        error = dialect.error(failure)["error"]
        assert (error["code"], error["message"]) == (code, "why")
        assert error["type"] == ("server_error" if status == 500 else "invalid_request_error")
    anthropic = MESSAGES.error(failure)
    too_long = "prompt is too long: " if refusal is Refusal.TOO_LONG else ""
    assert anthropic == {"type": "error", "error": {"type": kind, "message": f"{too_long}why"}}


def test_errors_in_a_stream():
    failure = FAILURES[Refusal.ENDED]
    assert events(CHAT.failed(failure)) == [("", CHAT_COMPLETIONS.error(failure))]
    assert events(MESSAGE.failed(failure)) == [("error", MESSAGES.error(failure))]
    *_, (name, data) = events(RESPONSE.failed(failure))
    assert (name, data["response"]["status"]) == ("response.failed", "failed")
    assert data["response"]["error"] == {"code": "invalid_prompt", "message": "why"}  # codex then does not try again
    *_, (_, data) = events(RESPONSE.failed(FAILURES[Refusal.TOO_LONG]))
    assert data["response"]["error"]["code"] == "context_length_exceeded"
