"""Malformed requests: each error names its key; any JSON is read or refused."""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import suppress
from copy import deepcopy
from io import BytesIO

import pytest
from harness_bodies import CHAT_BODIES, CHAT_CALL, CLAUDE_CODE, CODEX, MESSAGES_BODIES, RESPONSES_BODIES
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from agentrl.gateway.base import Refusal, RequestError
from agentrl.gateway.dialects.base import Asked
from agentrl.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from agentrl.gateway.dialects.json_text import read_body
from agentrl.gateway.dialects.messages import MESSAGES
from agentrl.gateway.dialects.responses import RESPONSES
from agentrl.utils.images import content_hash

DIALECTS = {"chat": CHAT_COMPLETIONS, "responses": RESPONSES, "messages": MESSAGES}
USER = {"role": "user", "content": "x"}
SMALL = {"chat": {"messages": [USER]}, "responses": {"input": [USER]}, "messages": {"messages": [USER]}}
LIST = {"chat": "messages", "responses": "input", "messages": "messages"}

KEYS = [
    ("chat", {"messages": None}, "messages: expected at least one message"),
    ("chat", {"messages": {}}, "messages: expected a list, got an object"),
    ("chat", {"messages": ["x"]}, "messages[0]: expected an object, got text"),
    ("chat", {"n": 2}, "n: a request gets one answer"),
    ("chat", {"n": True}, "n: expected a whole number of at least 1, got True"),
    ("chat", {"max_tokens": 0}, "max_tokens: expected a whole number of at least 1, got 0"),
    ("chat", {"max_tokens": "10"}, "max_tokens: expected a whole number"),
    ("chat", {"max_completion_tokens": 1.5}, "max_completion_tokens: expected a whole number"),
    ("chat", {"logprobs": True}, "logprobs: log-probabilities are recorded by the run"),
    ("chat", {"top_logprobs": 3}, "top_logprobs: log-probabilities are recorded"),
    ("chat", {"functions": [{}]}, "functions: use `tools`"),
    ("chat", {"stop": [1]}, "stop: expected texts that are not empty"),
    ("chat", {"stop": [""]}, "stop: expected texts that are not empty"),
    ("chat", {"stop": {}}, "stop: expected text or a list of texts, got an object"),
    ("chat", {"stream": "yes"}, "stream: expected true or false, got text"),
    ("chat", {"stream_options": []}, "stream_options: expected an object, got a list"),
    ("chat", {"model": 5}, "model: expected text, got a number"),
    ("chat", {"tools": [{}]}, "tools[0].type: expected text, got nothing"),
    ("chat", {"tools": [{"type": "function"}]}, "tools[0].function: expected an object, got nothing"),
    ("chat", {"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name: expected a text"),
    (
        "chat",
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
        "tools[0].function.parameters: expected an object, got a list",
    ),
    ("responses", {"input": None}, "input: expected text or at least one item"),
    ("responses", {"input": 5}, "input: expected text or a list of items, got a number"),
    ("responses", {"previous_response_id": "resp_1"}, "previous_response_id: the gateway stores no responses"),
    ("responses", {"conversation": "conv_1"}, "conversation: the gateway stores no responses"),
    ("responses", {"background": True}, "background: background responses are not supported"),
    ("responses", {"prompt": {"id": "p"}}, "prompt: prompts that a service stores"),
    ("responses", {"include": ["message.output_text.logprobs"]}, "include: message.output_text.logprobs"),
    ("responses", {"instructions": ["x"]}, "instructions: expected text, got a list"),
    ("responses", {"text": "x"}, "text: expected an object, got text"),
    ("messages", {"messages": []}, "messages: expected at least one message"),
    ("messages", {"messages": [USER, {"role": "assistant", "content": "So"}]}, "messages: the last message is"),
    ("messages", {"system": 5}, "system: expected text or a list of parts, got a number"),
    ("messages", {"system": [{"type": "image"}]}, "system[0].type: expected 'text', got 'image'"),
    ("messages", {"mcp_servers": [{}]}, "mcp_servers: the gateway calls no MCP servers"),
    ("messages", {"thinking": "on"}, "thinking: expected an object, got text"),
    ("messages", {"tools": [{"name": "a", "input_schema": "x"}]}, "tools[0].input_schema: expected an object"),
]
ENTRIES = [
    ("chat", {}, "messages[1].role: expected text, got nothing"),
    ("chat", {"role": "function", "content": "x"}, "messages[1].role: expected one of system, developer, user"),
    ("chat", {"role": "user"}, "messages[1].content: expected text or a list of parts, got nothing"),
    ("chat", {"role": "user", "content": 5}, "messages[1].content: expected text or a list of parts, got a number"),
    ("chat", {"role": "user", "content": ["x"]}, "messages[1].content[0]: expected an object, got text"),
    (
        "chat",
        {"role": "user", "content": [{"type": "input_audio"}]},
        "messages[1].content[0].type: expected 'text' or 'image_url', got 'input_audio'",
    ),
    (
        "chat",
        {"role": "user", "content": [{}]},
        "messages[1].content[0].type: expected 'text' or 'image_url', got none",
    ),
    ("chat", {"role": "tool", "content": "x"}, "messages[1].tool_call_id: expected text, got nothing"),
    (
        "chat",
        {"role": "assistant", "tool_calls": [{**CHAT_CALL, "id": None}]},
        "messages[1].tool_calls[0].id: expected text, got null",
    ),
    (
        "chat",
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "b"}}]},
        "messages[1].tool_calls[0].function.arguments: expected JSON text, got nothing",
    ),
    (
        "chat",
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "web"}]},
        "messages[1].tool_calls[0].type: expected 'function' or 'custom', got 'web'",
    ),
    (
        "chat",
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]},
        "messages[1].content[0].image_url: expected a data URL with the image's bytes; addresses are not fetched",
    ),
    (
        "chat",
        {"role": "user", "content": [{"type": "image_url", "image_url": "/etc/passwd"}]},
        "messages[1].content[0].image_url: expected a data URL",
    ),
    (
        "chat",
        {"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,AAAA"}]},
        "messages[1].content[0].image_url: cannot read the image",
    ),
    ("responses", {"type": "item_reference", "id": "a"}, "input[1].type: item_reference: the gateway stores no items"),
    ("responses", {"type": "computer_call"}, "input[1].type: expected one of message, reasoning"),
    ("responses", {"type": ["x"]}, "input[1].type: expected one of message, reasoning"),
    ("responses", {"type": "function_call", "name": "a"}, "input[1].call_id: expected text, got nothing"),
    ("responses", {"type": "function_call_output", "call_id": "a"}, "input[1].output: expected text or a list"),
    (
        "responses",
        {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
        "input[1].content[0].image_url: expected text, got nothing",
    ),
    ("messages", {"role": "tool", "content": "x"}, "messages[1].role: expected one of user, assistant, system"),
    ("messages", {"role": "user"}, "messages[1].content: expected text or a list of blocks, got nothing"),
    (
        "messages",
        {"role": "user", "content": [{"type": "document"}]},
        "messages[1].content[0].type: expected 'text', 'image' or 'tool_result', got 'document'",
    ),
    (
        "messages",
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://a.example"}}]},
        "messages[1].content[0].source.type: expected 'base64': the image's bytes; addresses and files",
    ),
    (
        "messages",
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "x"}]},
        "messages[1].content[0].input: expected an object, got text",
    ),
    (
        "messages",
        {"role": "user", "content": [{"type": "tool_result", "content": "x"}]},
        "messages[1].content[0].tool_use_id: expected text, got nothing",
    ),
]


def refused(dialect: str, body: object) -> str:
    with pytest.raises(RequestError) as caught:
        DIALECTS[dialect].read(body)
    assert caught.value.refusal is Refusal.INVALID
    return str(caught.value)


@pytest.mark.parametrize(("dialect", "keys", "text"), KEYS)
def test_an_error_names_the_key(dialect, keys, text):
    assert refused(dialect, {**SMALL[dialect], **keys}).startswith(text)


@pytest.mark.parametrize(("dialect", "entry", "text"), ENTRIES)
def test_an_error_names_the_message(dialect, entry, text):
    assert refused(dialect, {LIST[dialect]: [USER, entry]}).startswith(text)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("body", [None, [], "x", 1, True])
def test_a_body_is_an_object(dialect, body):
    assert refused(dialect, body).startswith("body: expected an object, got")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unknown_keys_and_nulls_are_tolerated(dialect):
    body = {**SMALL[dialect], "unknown": [{}], "tools": None, "stop": None, "stream": None, "user": "me"}
    request = DIALECTS[dialect].read(body).request
    assert [*request.messages] == [USER]
    assert request.ignored == ()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_sampling_parameters_have_no_effect(dialect):
    body = {**SMALL[dialect], "temperature": 0.0, "top_p": 1, "tool_choice": {"type": "none"}, "service_tier": None}
    assert DIALECTS[dialect].read(body).request.ignored == ("temperature", "top_p", "tool_choice")


def test_values_without_effect_are_not_listed():
    body = {"frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}, "parallel_tool_calls": True}
    assert CHAT_COMPLETIONS.read({**SMALL["chat"], **body}).request.ignored == ()
    body = {"text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}, "truncation": "auto"}
    assert RESPONSES.read({**SMALL["responses"], **body}).request.ignored == (
        "truncation",
        "text.format",
        "reasoning.effort",
    )


def test_tools_that_the_service_runs_are_left_out():
    tools = [{"type": "web_search_20250305", "name": "web_search"}, *CLAUDE_CODE["tools"]]
    request = MESSAGES.read({**CLAUDE_CODE, "tools": tools}).request
    assert [tool.name for tool in request.tools] == ["bash"]
    assert request.ignored[-1] == "tools[0] (web_search_20250305)"


def png() -> bytes:
    file = BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("dialect", "part"),
    [
        ("chat", lambda data: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}),
        ("responses", lambda data: {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}),
        ("messages", lambda data: {"type": "image", "source": image_source(data)}),
    ],
)
def test_images_are_named_by_their_hash(dialect, part):
    text = {"type": "input_text" if dialect == "responses" else "text", "text": "What is this?"}
    message = {"role": "user", "content": [text, part(b64encode(png()).decode())]}
    request = DIALECTS[dialect].read({LIST[dialect]: [message]}).request
    name = content_hash(png())
    assert request.images == {name: png()}
    assert request.messages[0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "image": name},
    ]


def image_source(data: str) -> dict[str, str]:
    return {"type": "base64", "media_type": "image/png", "data": data}


def test_half_a_surrogate_pair_is_replaced():
    body = read_body(b'{"messages": [{"role": "user", "content": "cut \\ud83d"}], "\\ude00": 1, "a": "\\ud83d\\ude00"}')
    assert body == {"messages": [{"role": "user", "content": "cut �"}], "�": 1, "a": "😀"}


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"a":' * 70 + b"1" + b"}" * 70, b'{"a": NaN}'])
def test_a_body_that_is_no_json_is_refused(body):
    with pytest.raises(RequestError, match="body: "):
        read_body(body)


# -- any JSON


def paths(value: object, here: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, each in inner for path in paths(each, (*here, key)))]


def changed(body: object, path: tuple[object, ...], value: object) -> object:
    if not path:
        return value
    copy = deepcopy(body)
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


BODIES = [
    *(("chat", body) for body in CHAT_BODIES.values()),
    *(("responses", body) for body in RESPONSES_BODIES.values()),
    *(("messages", body) for body in MESSAGES_BODIES.values()),
]
TYPES = [
    *("text", "image", "image_url", "input_image", "function", "custom", "tool_use", "tool_result", "thinking"),
    *("reasoning", "message", "function_call", "custom_tool_call_output", "item_reference", "refusal", "disabled"),
]
ROLES = ["user", "assistant", "system", "tool", "developer"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
WORDS = st.sampled_from([*TYPES, *ROLES, "data:image/png;base64,AAAA", "data:,x", "", "\x00", "é"])
ANY_JSON = st.recursive(
    SCALARS | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "content", "text", "role", "name", "id"]) | st.text(max_size=3), inner
        )
    ),
    max_leaves=8,
)


@st.composite
def bodies(draw):
    dialect, body = draw(st.sampled_from(BODIES))
    for _ in range(draw(st.integers(1, 3))):
        body = changed(body, draw(st.sampled_from(paths(body))), draw(ANY_JSON))
    return draw(st.sampled_from([dialect, *DIALECTS])), body


@given(bodies())
def test_any_json_is_read_or_refused(asked):
    dialect, body = asked
    read = read_or_refused(dialect, json.dumps(body).encode())
    for message in read.request.messages if read else []:
        assert message["role"] in ROLES
        assert isinstance(message["content"], str | list)


@given(st.sampled_from(list(DIALECTS)), ANY_JSON.map(lambda body: json.dumps(body).encode()) | st.binary())
def test_any_body_is_read_or_refused(dialect, body):
    read_or_refused(dialect, body)


def read_or_refused(dialect: str, body: bytes) -> Asked | None:
    with suppress(RequestError):
        return DIALECTS[dialect].read(read_body(body))
    return None


def test_the_bodies_that_are_changed_are_read():
    for dialect, body in BODIES:
        assert DIALECTS[dialect].read(body).request.messages
    assert CODEX in RESPONSES_BODIES.values()
