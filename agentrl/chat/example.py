"""An example conversation with tools, which shows how a chat template renders conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from agentrl.types.messages import FunctionCall, FunctionSchema, Message, MessageToolCall, ToolSchema

QUESTION: Message = {"role": "user", "content": "Will it rain in Paris tomorrow?"}
FOLLOW_UP: Message = {"role": "user", "content": "And the day after?"}
THOUGHTS = "I need a tool."
RESULT = "an example result"
ANSWER = "An example answer."
_OF_TYPE: Mapping[str, JsonValue] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
}


def _tool(name: str, description: str, required: Sequence[str], **properties: JsonValue) -> ToolSchema:
    parameters: dict[str, JsonValue] = {"type": "object", "properties": properties, "required": list(required)}
    return ToolSchema(function=FunctionSchema(name=name, description=description, parameters=parameters))


EXAMPLE_TOOLS = [
    _tool(
        "get_weather",
        "Weather forecast of a city.",
        ["city"],
        city={"type": "string", "description": "name of the city"},
        days={"type": "integer", "description": "days from today"},
    ),
    _tool("search", "Search the web.", ["query"], query={"type": "string", "description": "words to search for"}),
]


def example_turn(schemas: Sequence[ToolSchema], num_calls: int) -> Message:
    """Return a model turn with `num_calls` calls of the tools, in order."""
    calls = [_call(schemas[index % len(schemas)], index) for index in range(num_calls)]
    return Message(role="assistant", content="", tool_calls=calls)


def example_arguments(schema: ToolSchema) -> dict[str, JsonValue]:
    """Return arguments of the right types: the required arguments, or all if none is required."""
    properties, required = (schema.function.parameters.get(key) for key in ("properties", "required"))
    known = properties if isinstance(properties, dict) else {}
    wanted = [name for name in required if name in known] if isinstance(required, list) else []
    return {str(name): _example(known[str(name)]) for name in wanted or known}


def example_conversation(
    start: Sequence[Message], schemas: Sequence[ToolSchema], num_calls: int, *, user_turn: bool, thoughts: bool = True
) -> list[Message]:
    """Continue `start` with tool calls (if `num_calls` is not 0), their results, and an answer.

    Args:
        user_turn: whether a further question and its answer follow.
        thoughts: whether model turns have thoughts.
    """
    messages = list(start)
    if num_calls:
        turn = example_turn(schemas, num_calls)
        messages += [turn, *map(_result, turn["tool_calls"])]
    answer = Message(role="assistant", content=ANSWER)
    messages += [answer, FOLLOW_UP, answer] if user_turn else [answer]
    return [_thinking(message) if thoughts and message["role"] == "assistant" else message for message in messages]


def _thinking(message: Message) -> Message:
    return Message(**{**message, "reasoning_content": THOUGHTS})


def _call(schema: ToolSchema, index: int) -> MessageToolCall:
    function = FunctionCall(name=schema.name, arguments=example_arguments(schema))
    # some templates require ids of nine letters and digits
    return MessageToolCall(id=f"example{index:02d}", type="function", function=function)


def _result(call: MessageToolCall) -> Message:
    return Message(role="tool", name=call["function"]["name"], tool_call_id=call["id"], content=RESULT)


def _example(schema: JsonValue) -> JsonValue:
    if not isinstance(schema, dict):
        return "text"
    for key in ("enum", "examples"):
        if isinstance(values := schema.get(key), list) and values:
            return values[0]
    kind = schema.get("type")
    return _OF_TYPE.get(str(kind[0] if isinstance(kind, list) and kind else kind), "text")
