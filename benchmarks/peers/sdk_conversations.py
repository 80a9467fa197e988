"""Use a gateway through OpenAI's and Anthropic's SDKs, and print the answers that the SDKs return, as JSON.

python sdk_conversations.py questions.json    # {"url": …, "slow_url": …, "wrong_url": …, "png": base64 of an image}

`slow_url` belongs to a gateway that sends keep-alive messages before each answer. `wrong_url` contains an unknown key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai

QUESTIONS = json.loads(Path(sys.argv[1]).read_text())
PARAMETERS = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
FUNCTION = {"name": "add", "description": "Adds", "parameters": PARAMETERS}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS = [
    {"type": "function", "strict": False, **FUNCTION},
    {"type": "custom", "name": "patch", "description": "Edits"},
]
MESSAGES_TOOLS = [{"name": "add", "description": "Adds", "input_schema": PARAMETERS}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


def main() -> None:
    found = {"versions": [openai.__version__, anthropic.__version__]}
    for url in ("url", "slow_url"):
        chat = openai.OpenAI(base_url=QUESTIONS[url] + "/v1", api_key="any")
        claude = anthropic.Anthropic(base_url=QUESTIONS[url], api_key="any")
        for name, ask in {**CHAT, **RESPONSES}.items():
            found[f"{url} {name}"] = ask(chat)
        for name, ask in MESSAGES.items():
            found[f"{url} {name}"] = ask(claude)
    print(json.dumps(found))


# -- Chat Completions


def chat_turns(ask: Callable[..., Any]) -> list[Any]:
    """Ask for a tool call, then send the tool's result and ask for text. The call is sent as the SDK returned it."""
    messages: list[Any] = [{"role": "user", "content": "call"}]
    first = ask(messages=messages)
    calls = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in first.choices[0].message.tool_calls]
    messages += [first.choices[0].message, *calls, {"role": "user", "content": "text"}]
    second = ask(messages=messages)
    return [chat_turn(first), chat_turn(second)]


def chat_turn(answer: Any) -> dict[str, Any]:
    message = answer.choices[0].message
    return {
        "content": message.content or "",
        "thoughts": getattr(message, "reasoning_content", None),
        "calls": [[call.id, call.function.name, call.function.arguments] for call in message.tool_calls or []],
        "finish": answer.choices[0].finish_reason,
        "tokens": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
        "model": answer.model,
    }


def chat(client: openai.OpenAI) -> list[Any]:
    return chat_turns(lambda messages: client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS))


def chat_stream(client: openai.OpenAI) -> list[Any]:
    def ask(messages: list[Any]) -> Any:
        options = {"stream_options": {"include_usage": True}}
        with client.chat.completions.stream(model="m", messages=messages, tools=CHAT_TOOLS, **options) as stream:
            return stream.get_final_completion()

    return chat_turns(ask)


def chat_image(client: openai.OpenAI) -> str:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{QUESTIONS['png']}"}}
    content = [{"type": "text", "text": "image"}, image]
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])
    return answer.choices[0].message.content


def models(client: openai.OpenAI) -> list[str]:
    return [model.id for model in client.models.list()] + [client.models.retrieve("org/other").id]


def openai_error(client: openai.OpenAI, ask: Callable[..., Any]) -> list[Any]:
    try:
        ask(client)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code]
    except openai.APIError as error:  # in a stream
        return [type(error).__name__, None, error.code]
    return ["no error"]


def chat_text(text: str, **keys: Any) -> Callable[[openai.OpenAI], Any]:
    def ask(client: openai.OpenAI) -> Any:
        messages = [{"role": "user", "content": text}]
        answer = client.chat.completions.create(model="m", messages=messages, **keys)
        return [*answer] if keys.get("stream") else chat_turn(answer)

    return ask


def chat_errors(client: openai.OpenAI) -> list[Any]:
    wrong = openai.OpenAI(base_url=QUESTIONS["wrong_url"] + "/v1", api_key="any")
    return [
        openai_error(wrong, chat_text("text")),
        openai_error(client, chat_text("too long")),
        openai_error(client, chat_text("ended", stream=True)),
        openai_error(client, chat_text("text", n=2)),
        openai_error(client.with_options(max_retries=0), chat_text("always fails")),
    ]


def closes_early(client: openai.OpenAI) -> int:
    """Read the beginning of a long answer, and close the connection."""
    messages = [{"role": "user", "content": "long"}]
    create = client.chat.completions.with_streaming_response.create
    with create(model="m", messages=messages, stream=True) as response:
        return len(next(response.iter_bytes())) and response.status_code


CHAT: dict[str, Callable[[openai.OpenAI], Any]] = {
    "chat": chat,
    "chat stream": chat_stream,
    "chat image": chat_image,
    "chat repeats": chat_text("fails once"),
    "chat errors": chat_errors,
    "models": models,
    "closes early": closes_early,
}


# -- Responses


def responses_turns(ask: Callable[..., Any]) -> list[Any]:
    items: list[Any] = [{"role": "user", "content": "call"}]
    first = ask(input=items)
    outputs = [
        {"type": f"{item.type}_output", "call_id": item.call_id, "output": "3"}
        for item in first.output
        if item.type in ("function_call", "custom_tool_call")
    ]
    items += [*first.output, *outputs, {"role": "user", "content": "text"}]
    return [responses_turn(first), responses_turn(ask(input=items))]


def responses_turn(answer: Any) -> dict[str, Any]:
    thoughts = [item for item in answer.output if item.type == "reasoning"]
    calls = [item for item in answer.output if item.type.endswith("_call")]
    return {
        "content": answer.output_text,
        "thoughts": thoughts[0].summary[0].text if thoughts else None,
        "turn": thoughts[0].encrypted_content if thoughts else None,
        "calls": [[call.call_id, call.name, getattr(call, "arguments", None) or call.input] for call in calls],
        "finish": answer.status,
        "tokens": [answer.usage.input_tokens, answer.usage.output_tokens],
        "model": answer.model,
    }


def responses(client: openai.OpenAI) -> list[Any]:
    include = ["reasoning.encrypted_content"]
    return responses_turns(
        lambda input: client.responses.create(
            model="m", input=input, tools=RESPONSES_TOOLS, include=include, store=False
        )
    )


def responses_stream(client: openai.OpenAI) -> list[Any]:
    def ask(input: list[Any]) -> Any:
        with client.responses.stream(model="m", input=input, tools=RESPONSES_TOOLS) as stream:
            events = [event.type for event in stream]
            assert events[-1] == "response.completed", events
            return stream.get_final_response()

    return responses_turns(ask)


def responses_text(text: str, **keys: Any) -> Callable[[openai.OpenAI], Any]:
    def ask(client: openai.OpenAI) -> Any:
        answer = client.responses.create(model="m", input=text, **keys)
        return [event.type for event in answer] if keys.get("stream") else responses_turn(answer)

    return ask


def responses_errors(client: openai.OpenAI) -> list[Any]:
    return [
        openai_error(client, responses_text("too long")),
        openai_error(client, responses_text("text", previous_response_id="resp_1")),
    ]


def responses_image(client: openai.OpenAI) -> str:
    image = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{QUESTIONS['png']}"}
    content = [{"type": "input_text", "text": "image"}, image]
    return client.responses.create(model="m", input=[{"role": "user", "content": content}]).output_text


RESPONSES: dict[str, Callable[[openai.OpenAI], Any]] = {
    "responses": responses,
    "responses stream": responses_stream,
    "responses image": responses_image,
    "responses repeats": responses_text("fails once"),
    "responses errors": responses_errors,
    "responses failed stream": lambda client: openai_error(client, responses_text("ended", stream=True)),
}


# -- Messages


def messages_turns(ask: Callable[..., Any]) -> list[Any]:
    conversation: list[Any] = [{"role": "user", "content": "call"}]
    first = ask(messages=conversation)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "3"}
        for block in first.content
        if block.type == "tool_use"
    ]
    conversation += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "text"}]},
    ]
    return [messages_turn(first), messages_turn(ask(messages=conversation))]


def messages_turn(answer: Any) -> dict[str, Any]:
    blocks: dict[str, list[Any]] = {"thinking": [], "text": [], "tool_use": []}
    for block in answer.content:
        blocks[block.type].append(block)
    return {
        "content": "".join(block.text for block in blocks["text"]),
        "thoughts": "".join(block.thinking for block in blocks["thinking"]) or None,
        "calls": [[block.id, block.name, block.input] for block in blocks["tool_use"]],
        "finish": answer.stop_reason,
        "tokens": [answer.usage.input_tokens + answer.usage.cache_read_input_tokens, answer.usage.output_tokens],
        "model": answer.model,
    }


def messages(client: anthropic.Anthropic) -> list[Any]:
    keys = {"model": "m", "max_tokens": 2000, "tools": MESSAGES_TOOLS, "thinking": THINKING}
    return messages_turns(lambda messages: client.messages.create(messages=messages, **keys))


def messages_stream(client: anthropic.Anthropic) -> list[Any]:
    keys = {"model": "m", "max_tokens": 2000, "tools": MESSAGES_TOOLS, "thinking": THINKING}

    def ask(messages: list[Any]) -> Any:
        with client.messages.stream(messages=messages, **keys) as stream:
            return stream.get_final_message()

    return messages_turns(ask)


def beta_messages(client: anthropic.Anthropic) -> dict[str, Any]:
    ask = [{"role": "user", "content": "call"}]
    return messages_turn(client.beta.messages.create(model="m", max_tokens=10, messages=ask, tools=MESSAGES_TOOLS))


def messages_text(text: Any, **keys: Any) -> Callable[[anthropic.Anthropic], Any]:
    def ask(client: anthropic.Anthropic) -> Any:
        answer = client.messages.create(model="m", max_tokens=10, messages=[{"role": "user", "content": text}], **keys)
        return [event.type for event in answer] if keys.get("stream") else messages_turn(answer)

    return ask


def messages_image(client: anthropic.Anthropic) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": QUESTIONS["png"]}
    return messages_text([{"type": "text", "text": "image"}, {"type": "image", "source": source}])(client)["content"]


def anthropic_error(client: anthropic.Anthropic, ask: Callable[..., Any]) -> list[Any]:
    try:
        ask(client)
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.body["error"]["type"]]
    return ["no error"]


def messages_errors(client: anthropic.Anthropic) -> list[Any]:
    wrong = anthropic.Anthropic(base_url=QUESTIONS["wrong_url"], api_key="any")
    return [
        anthropic_error(wrong, messages_text("text")),
        anthropic_error(client, messages_text("too long")),
        anthropic_error(client.with_options(max_retries=0), messages_text("always fails")),
    ]


def anthropic_about(client: anthropic.Anthropic) -> list[Any]:
    count = client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "text"}])
    return [count.input_tokens, *[model.id for model in client.models.list()]]


MESSAGES: dict[str, Callable[[anthropic.Anthropic], Any]] = {
    "messages": messages,
    "messages stream": messages_stream,
    "beta messages": beta_messages,
    "messages image": messages_image,
    "messages repeats": messages_text("fails once"),
    "messages errors": messages_errors,
    "messages failed stream": lambda client: anthropic_error(client, messages_text("ended", stream=True)),
    "about": anthropic_about,
}

if __name__ == "__main__":
    main()
