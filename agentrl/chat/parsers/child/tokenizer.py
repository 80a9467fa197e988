"""Parser that reads turns as the model's tokenizer describes them: transformers' `parse_response`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.child.asking import ask_reader
from agentrl.chat.parsers.json_call import call_name, call_of
from agentrl.chat.parsers.parameter_types import ParameterTypes
from agentrl.chat.parsers.thinking import THINK, split_thinking
from agentrl.errors import ConfigError, Kind
from agentrl.types.messages import ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KINDS = ("response_template", "response_schema")
"""Descriptions of turns in `tokenizer_config.json`: of transformers 5.13 and later, and of earlier versions."""
NO_SPEC: Mapping[str, JsonValue] = MappingProxyType({})
_READER = "agentrl.chat.parsers.child.tokenizer_reader"
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


class TokenizerParser:
    """Parser that uses the tokenizer's `response_template`, or with transformers before 5.13 its `response_schema`.

    - The description comes with the model, and its regular expressions may need very long. So each turn is read in a
      child process with a timeout. After a timeout or another failure, the turn is one malformed call.
    - Thoughts in `<think>` at the beginning are split off first: calls in them are ignored.
    - An argument that is text gets the type in the tool's schema (see `for_tools`), because some descriptions have no
      types.
    - A call that the description does not match is content.
    """

    stop: tuple[str, ...] = ()
    off_loop = True
    """True: parsing may need seconds, so it must not run on the event loop."""

    def __init__(
        self, kind: str = "", spec: Mapping[str, JsonValue] = NO_SPEC, schemas: Sequence[ToolSchema] = ()
    ) -> None:
        self._kind, self._spec, self._types = kind, spec, ParameterTypes(schemas)
        self._names = ", ".join(schema.name for schema in schemas)

    def for_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Return a parser for turns of the tokenizer's model.

        Raises:
            ConfigError: the tokenizer does not describe turns.
        """
        for kind in KINDS:
            if isinstance(spec := getattr(tokenizer, kind, None), dict):
                return type(self)(kind, spec)
        raise ConfigError.at(
            "rollout.multi_turn.format",
            Kind.NOT_FOUND,
            f"the format 'tokenizer' needs {' or '.join(KINDS)} in the model's tokenizer_config.json, which has none "
            "that this version of transformers reads: use 'auto' or another format",
        )

    def for_tools(self, schemas: Sequence[ToolSchema]) -> Self:
        """Return a parser for turns in which these tools are available."""
        return type(self)(self._kind, self._spec, schemas)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn. Without a tokenizer, it has no calls."""
        thinking, answer = split_thinking(text) if text.lstrip().startswith(THINK) else ("", text)
        if not answer or not self._spec:
            return ParsedTurn(answer, thinking=thinking)
        read = self._read(answer)
        message = read.get("message")
        if not isinstance(message, dict):
            if "error" in read:
                return ParsedTurn("", (self._unreadable(answer, read["error"]),), thinking)
            return ParsedTurn(answer.strip(), thinking=thinking)
        calls = self._calls(message.get("tool_calls"), cut=bool(read.get("cut")))
        thoughts = [thinking, *(_text(message, key) for key in _THOUGHTS)]
        return ParsedTurn(_text(message, "content"), calls, "\n".join(filter(None, thoughts)))

    def _read(self, text: str) -> dict[str, Any]:  # Any: JSON of the child process
        """The `message` of a turn, or an `error`."""
        answer = ask_reader(_READER, {"kind": self._kind, "spec": self._spec, "text": text})
        found: dict[str, Any] = answer.get("found") or {"error": answer["error"]}
        return found

    def _calls(self, value: JsonValue, *, cut: bool) -> tuple[ParsedCall, ...]:
        items = value if isinstance(value, list) else [] if value is None else [value]
        calls = [self._call(item) for item in items]
        if cut and calls:
            calls[-1] = self._unreadable(calls[-1].arguments, "it is not closed")
        return tuple(calls)

    def _call(self, item: JsonValue) -> ParsedCall:
        function = item.get("function", item) if isinstance(item, dict) else item
        name, body = call_name(function), json.dumps(function)
        if isinstance(function, dict):
            arguments = function.get("arguments")
            function = {"name": name, "arguments": self._typed(name, {} if arguments is None else arguments)}
        return call_of(function, body, f"The tools are: {self._names}.")

    def _typed(self, tool: str, arguments: JsonValue) -> JsonValue:
        if not isinstance(arguments, dict):
            return arguments
        return json.dumps(
            {
                key: self._types.value(tool, key, value) if isinstance(value, str) else value
                for key, value in arguments.items()
            }
        )

    def _unreadable(self, text: str, why: str) -> ParsedCall:
        return ParsedCall("", text.strip(), f"The tool call cannot be read: {why}. The tools are: {self._names}.")


def _text(message: Mapping[str, JsonValue], key: str) -> str:
    value = message.get(key)
    return value.strip() if isinstance(value, str) else ""
