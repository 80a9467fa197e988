"""Parser that uses the `response_schema` of the model's tokenizer, as transformers' `parse_response` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.foreign import process
from agentrl.chat.parsers.json_call import call_of
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.concurrency.child import EndedError
from agentrl.errors import ConfigError, Kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MODULE = "agentrl.chat.parsers.foreign.tokenizer_reader"
_THOUGHTS = ("thinking", "reasoning_content", "reasoning")
_EXPECTED = "Write calls as the system prompt describes."


class TokenizerParser:
    """Parser of calls in the format that the tokenizer describes; see `for_tokenizer`.

    - The schema belongs to the model's files. Its patterns may need too much time or memory, so they run in a child
      process with limits.
    - All text up to the first `</think>` is thoughts: the schema reads only the text after it. Other thoughts are those
      that the schema finds.
    - A turn that the schema cannot read is a malformed call. Whether a cut call is content or malformed depends on the
      schema.
    """

    stop: tuple[str, ...] = ()
    off_loop = True

    def __init__(self, schema: Mapping[str, JsonValue] | None = None) -> None:
        self._schema = schema

    def for_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> TokenizerParser:
        """Return a parser with the tokenizer's schema.

        Raises:
            ConfigError: the tokenizer has no schema.
        """
        schema = getattr(tokenizer, "response_schema", None)
        if not isinstance(schema, dict):
            raise ConfigError.at(
                "rollout.multi_turn.format",
                Kind.CONFLICT,
                "tool parser 'tokenizer' needs a tokenizer with a response_schema; the model's has none: use 'auto'",
            )
        return TokenizerParser(schema)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = split_thinking(text)
        if self._schema is None or not answer.strip():
            return ParsedTurn(answer.strip(), thinking=thinking)
        try:
            question = {"schema": self._schema, "text": answer, "deadline_s": process.DEADLINE_S}
            found = process.ask(_MODULE, question)
        except EndedError as error:
            found = {"mistake": f"its reader {error}"}
        if "mistake" in found:
            return ParsedTurn("", (_unreadable(answer, str(found["mistake"])),), thinking)
        return _turn(found["result"], answer, thinking)


def _turn(message: JsonValue, text: str, thinking: str) -> ParsedTurn:
    if not isinstance(message, dict):
        return ParsedTurn(text.strip(), thinking=thinking)
    found = message.get("tool_calls") or []
    calls = tuple(_call(item, text) for item in (found if isinstance(found, list) else [found]))
    texts = [value for key in _THOUGHTS if isinstance(value := message.get(key), str)]
    content = message.get("content")
    thoughts = "\n".join(filter(None, [thinking, *texts[:1]]))
    return ParsedTurn(content.strip() if isinstance(content, str) else "", calls, thoughts)


def _call(item: JsonValue, text: str) -> ParsedCall:
    value = item.get("function", item) if isinstance(item, dict) else item
    if isinstance(value, dict) and value.get("arguments") is None:
        value = {**value, "arguments": {}}  # patterns find nothing in a call without arguments
    call = call_of(value, text.strip(), _EXPECTED)
    return call if call.error or call.name in text else _unreadable(text, f"'{call.name}' is not in the turn")


def _unreadable(text: str, why: str) -> ParsedCall:
    return ParsedCall("", text.strip(), f"The tool call cannot be read: {why}. {_EXPECTED}")
