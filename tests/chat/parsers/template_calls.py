"""Model turns with calls, as a chat template writes them through transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from parser_contract import Call
from public_templates import MISSING, NAMES
from transformers import PreTrainedTokenizerFast

from agentrl.chat.base import ParsedTurn

needs_public_templates = pytest.mark.skipif(not NAMES, reason=MISSING)


def written_turn(
    tokenizer: PreTrainedTokenizerFast,
    calls: Sequence[Call],
    begin: str,
    end: str,
    *,
    text: bool = False,
    **fields: object,
) -> str:
    """The text that the template writes between `begin` and the last `end` for a turn with these calls.

    Args:
        text: whether the template takes arguments as JSON text.
        fields: further keys of the message, such as its content.
    """
    made = [
        {
            "id": f"functions.{name}:{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False) if text else given},
        }
        for number, (name, given) in enumerate(calls)
    ]
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", **fields}]
    if made:
        messages[1]["tool_calls"] = made
    whole = str(tokenizer.apply_chat_template(messages, tokenize=False))
    return whole.partition(begin)[2].rpartition(end)[0]


def calls_of(turn: ParsedTurn) -> list[tuple[str, object]]:
    """Names and arguments of the turn's calls, none of which has an error."""
    assert [call.error for call in turn.calls if call.error] == []
    return [(call.name, json.loads(call.arguments)) for call in turn.calls]
