"""Parser that reads turns as the model's tokenizer describes them: transformers' `parse_response`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.foreign import process
from agentrl.chat.parsers.json_call import call_name, call_of
from agentrl.chat.parsers.parameter_types import ParameterTypes
from agentrl.chat.parsers.thinking import THINK, split_thinking
from agentrl.concurrency.child import EndedError
from agentrl.errors import ConfigError, Kind
from agentrl.types.messages import ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KINDS = ("response_template", "response_schema")
"""Keys under which `tokenizer_config.json` may describe turns; the second key is for transformers before 5.13."""
_MODULE = "agentrl.chat.parsers.foreign.tokenizer_reader"
_THOUGHTS = ("thinking", "reasoning_content", "reasoning")
_EXPECTED = "Write calls as the system prompt describes."


class TokenizerParser:
    """Parser of calls in the format that the tokenizer describes; see `for_tokenizer`.

    - The description belongs to the model's files. Its patterns may need too much time or memory, so they run in a
      child process with limits.
    - Thoughts in `<think>` at the beginning are split off first. The description finds all other thoughts.
    - An argument that is text is converted to the type in the tool's schema (see `for_tools`), because some
      descriptions have no types.
    - A turn that the description cannot read is a malformed call. If the description can read a turn with a truncated
      call, the description also determines whether this call is content or malformed.
    """

    stop: tuple[str, ...] = ()
    off_loop = True

    def __init__(
        self, kind: str = "", spec: Mapping[str, JsonValue] | None = None, schemas: Sequence[ToolSchema] = ()
    ) -> None:
        self._kind, self._spec, self._types = kind, spec, ParameterTypes(schemas)

    def for_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Return a parser with the tokenizer's description.

        Raises:
            ConfigError: the tokenizer has no description.
        """
        for kind in KINDS:
            if isinstance(spec := getattr(tokenizer, kind, None), dict):
                return type(self)(kind, spec)
        raise ConfigError.at(
            "rollout.multi_turn.format",
            Kind.CONFLICT,
            f"tool parser 'tokenizer' needs a tokenizer with {' or '.join(KINDS)} for this version of transformers; "
            "the model's tokenizer has none: use 'auto'",
        )

    def for_tools(self, schemas: Sequence[ToolSchema]) -> Self:
        """Return a parser for turns in which these tools are available."""
        return type(self)(self._kind, self._spec, schemas)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn. Without a description, the turn has no calls."""
        thinking, answer = split_thinking(text) if text.lstrip().startswith(THINK) else ("", text)
        if self._spec is None or not answer.strip():
            return ParsedTurn(answer.strip(), thinking=thinking)
        found = self._read(answer)
        if "mistake" in found:
            return ParsedTurn("", (_unreadable(answer, str(found["mistake"])),), thinking)
        return self._turn(found["result"], answer, thinking, cut=bool(found["cut"]))

    def _read(self, text: str) -> Mapping[str, Any]:  # Any: JSON of the child process
        """Return `result` and `cut`, or a `mistake`; see `tokenizer_reader.read_turn`."""
        question = {"kind": self._kind, "spec": self._spec, "text": text, "deadline_s": process.DEADLINE_S}
        try:
            return process.ask(_MODULE, question)
        except EndedError as error:
            return {"mistake": f"its reader {error}"}

    def _turn(self, message: JsonValue, text: str, thinking: str, *, cut: bool) -> ParsedTurn:
        if not isinstance(message, dict):
            return ParsedTurn(text.strip(), thinking=thinking)
        found = message.get("tool_calls") or []
        calls = [self._call(item, text) for item in (found if isinstance(found, list) else [found])]
        if cut and calls:
            calls[-1] = _unreadable(text, "it is not closed")
        texts = [value.strip() for key in _THOUGHTS if isinstance(value := message.get(key), str)]
        content = message.get("content") or ("" if calls or texts else text)  # if nothing was found, all is content
        thoughts = "\n".join(filter(None, [thinking, *texts[:1]]))
        return ParsedTurn(content.strip() if isinstance(content, str) else "", tuple(calls), thoughts)

    def _call(self, item: JsonValue, text: str) -> ParsedCall:
        value = item.get("function", item) if isinstance(item, dict) else item
        if isinstance(value, dict):
            value = {**value, "arguments": self._typed(call_name(value), value.get("arguments"))}
        call = call_of(value, text.strip(), _EXPECTED)
        return call if call.error or call.name in text else _unreadable(text, f"'{call.name}' is not in the turn")

    def _typed(self, tool: str, arguments: JsonValue) -> JsonValue:
        if not isinstance(arguments, dict):
            return {} if arguments is None else arguments  # None: a call without arguments
        return {
            key: self._types.value(tool, key, value) if isinstance(value, str) else value
            for key, value in arguments.items()
        }


def _unreadable(text: str, why: str) -> ParsedCall:
    return ParsedCall("", text.strip(), f"The tool call cannot be read: {why}. {_EXPECTED}")
