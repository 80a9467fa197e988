"""Requests in the form of each harness: messages, tools, and keys without effect."""

from __future__ import annotations

import json

import pytest
from harness_bodies import (
    ARGUMENTS,
    CHAT_BODIES,
    CLAUDE_CODE,
    CLINE,
    CODEX,
    FUNCTION,
    MESSAGES_BODIES,
    MINI_SWE_AGENT,
    OPENCODE,
    PI,
    QWEN_CODE,
    RESPONSES_BODIES,
    SMOLAGENTS,
)

from agentrl.gateway.base import TurnRequest
from agentrl.gateway.dialects import chat_completions, messages, responses

READERS = {
    **{f"{name} chat": (chat_completions.read, body) for name, body in CHAT_BODIES.items()},
    **{f"{name} responses": (responses.read, body) for name, body in RESPONSES_BODIES.items()},
    **{f"{name} messages": (messages.read, body) for name, body in MESSAGES_BODIES.items()},
}
IGNORED = {
    "openai-agents chat": ("tools[0].function.strict",),
    "smolagents chat": ("tool_choice",),
    "pi chat": ("reasoning_effort",),
    "codex responses": ("tools[2] (namespace)", "tools[3] (web_search)"),
    "claude-code messages": ("thinking", "output_config", "context_management"),
}
THOUGHTS = "I should look."
TEXT = "Let me look.\n"


def read(name: str) -> TurnRequest:
    reader, body = READERS[name]
    return reader(json.loads(json.dumps(body))).request


@pytest.mark.parametrize("name", READERS)
def test_the_prompt_the_tools_and_what_has_no_effect(name):
    request = read(name)
    assert request.messages[0] == {"role": "system", "content": "You fix bugs."}
    assert any("Fix it." in str(message["content"]) for message in request.messages if message["role"] == "user")
    assert request.tools[0].for_template()["function"] == FUNCTION
    assert request.ignored == IGNORED.get(name, ())


@pytest.mark.parametrize("name", [name for name in READERS if not name.startswith("smolagents")])
def test_a_turn_of_the_model_is_one_message_and_its_tool_results_follow(name):
    conversation = read(name).messages
    turn = next(message for message in conversation if message.get("tool_calls"))
    (call, *_) = turn["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("call_1", "bash")
    arguments = call["function"]["arguments"]
    assert (json.loads(arguments) if isinstance(arguments, str) else arguments) == {"command": "ls"}
    assert turn["content"] in (TEXT, "")
    assert turn.get("reasoning_content", THOUGHTS) == THOUGHTS
    result = conversation[conversation.index(turn) + 1]
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}


def test_arguments_are_as_the_client_sent_them():
    (call,) = read("mini-swe-agent chat").messages[2]["tool_calls"]
    assert call["function"]["arguments"] == ARGUMENTS
    (call,) = read("claude-code messages").messages[3]["tool_calls"]
    assert call["function"]["arguments"] == {"command": "ls"}


def test_texts_of_parts_are_joined():
    assert read("cline chat").messages[1] == {"role": "user", "content": "Fix it.<environment/>"}
    assert read("smolagents chat").messages[3] == {"role": "user", "content": "Observation:\na.txt"}


def test_limits_and_stop_strings():
    assert {name: read(f"{name} chat").max_tokens for name in ("pi", "qwen-code", "cline")} == {
        "pi": PI["max_completion_tokens"],
        "qwen-code": QWEN_CODE["max_tokens"],
        "cline": None,
    }
    assert read("opencode responses").max_tokens == OPENCODE["max_output_tokens"]
    assert read("claude-code messages").max_tokens == CLAUDE_CODE["max_tokens"]
    assert read("smolagents chat").stop == tuple(SMOLAGENTS["stop"])
    assert messages.read({**CLAUDE_CODE, "stop_sequences": ["END"]}).request.stop == ("END",)


def test_thoughts_are_kept():
    assert read("mini-swe-agent chat").messages[2]["reasoning_content"] == THOUGHTS
    assert read("codex responses").messages[3]["reasoning_content"] == THOUGHTS
    assert read("claude-code messages").messages[3]["reasoning_content"] == THOUGHTS
    other_name = {"role": "assistant", "content": "Hi", "reasoning": THOUGHTS}
    body = {"messages": [*MINI_SWE_AGENT["messages"], other_name]}
    assert chat_completions.read(body).request.messages[-1]["reasoning_content"] == THOUGHTS


def test_tools_whose_input_is_a_text():
    request = read("codex responses")
    assert request.tools[1].name == "apply_patch"
    assert request.tools[1].function.parameters["required"] == ["input"]
    assert request.messages[3]["tool_calls"][1]["function"]["arguments"] == '{"input":"*** Begin"}'
    assert request.messages[5] == {"role": "tool", "tool_call_id": "call_2", "content": "Done"}
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin"}}
    tool = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "text"}}}
    body = {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [custom]}],
        "tools": [tool],
    }
    request = chat_completions.read(body).request
    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"input":"*** Begin"}'
    assert request.tools[0].function.parameters["required"] == ["input"]


def test_claude_codes_changing_header_is_dropped_and_results_come_before_the_text():
    conversation = read("claude-code messages").messages
    assert conversation[0]["content"] == "You fix bugs."
    assert [message["role"] for message in conversation] == ["system", "user", "system", "assistant", "tool", "user"]
    assert conversation[-1]["content"] == "Go on."
    text = CLAUDE_CODE["system"][0]["text"] + "\nYou fix bugs."
    for system in (text, [{"type": "text", "text": text}]):
        request = messages.read({**CLAUDE_CODE, "system": system}).request
        assert request.messages[0]["content"] == "You fix bugs."


def test_adjacent_items_of_the_model_are_one_message():
    assert [message["role"] for message in read("codex responses").messages] == [
        "system",
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    item = {"role": "assistant", "content": "a"}
    body = {"input": [{"role": "user", "content": "x"}, item, {**item, "content": "b"}]}
    assert responses.read(body).request.messages[1:] == [{"role": "assistant", "content": "ab"}]


def test_the_form_of_the_answer():
    assert not chat_completions.read(MINI_SWE_AGENT).stream
    assert chat_completions.read(CLINE).stream
    assert chat_completions.read(CLINE).reply.with_usage
    assert responses.read(CODEX).reply.with_turn_id
    assert not responses.read(OPENCODE).reply.with_turn_id
    assert messages.read(CLAUDE_CODE).reply.with_thinking
    for thinking in (None, {"type": "disabled"}):
        assert not messages.read({**CLAUDE_CODE, "thinking": thinking}).reply.with_thinking


def test_an_unnamed_input_is_the_users():
    request = responses.read({"input": "Hello"}).request
    assert request.messages == [{"role": "user", "content": "Hello"}]
