"""Preference pairs from rows: a chosen and a rejected conversation that share a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from pydantic import JsonValue

from agentrl.config.data import DataConfig
from agentrl.data.dialogues import Dialogue, check_order, read_tools, read_variables
from agentrl.data.fields import SYSTEM_ROLES, FieldError, read_messages, required, with_system, wrong
from agentrl.data.rows.base import Row, Rows
from agentrl.data.rows.table import Table, load_table
from agentrl.types.messages import Message

_EXPECTED = "text or a list of messages"


class Pair(NamedTuple):
    """Two conversations with a common prompt of `num_shared` messages; both continue with an assistant turn."""

    chosen: Dialogue
    rejected: Dialogue
    num_shared: int

    @property
    def prompt(self) -> Sequence[Message]:
        """The common prompt."""
        return self.chosen.messages[: self.num_shared]


def load_pairs(files: Sequence[str], config: DataConfig, *, max_samples: int = -1) -> Table[Pair]:
    """Load the pairs of `files`: columns `chosen` and `rejected`, in one of TRL's formats.

    - `chosen` and `rejected` are complete conversations (lists of messages) with a common start.
    - `chosen` and `rejected` are answers to the prompt in column `config.prompt_key`: text, or lists of messages that
      start with an assistant turn.

    The prompt of a pair is the longest common start after which both conversations have an assistant turn.
    `config.system_prompt` is prepended to pairs without a system message. The columns `tools` and
    `chat_template_kwargs` are optional. Other columns are ignored.

    Raises:
        DataError: a file or a row is invalid; the message names file, row and field. Every row is checked here.
    """

    def read(row: Row, position: int, rows: Rows) -> Pair:
        return read_pair(row, config.prompt_key, config.system_prompt)

    return load_table(files, read, max_samples)


def read_pair(row: Row, prompt_key: str = "prompt", system_prompt: str | None = None) -> Pair:
    """Read the pair of a row.

    Raises:
        FieldError: the row does not contain two comparable conversations.
    """
    prompt = _prompt(row, prompt_key)
    tools, variables = read_tools(row.get("tools")), read_variables(row)
    chosen, rejected = (
        Dialogue(with_system(_conversation(row, key, prompt, prompt_key), system_prompt), tools, variables)
        for key in ("chosen", "rejected")
    )
    if chosen.messages == rejected.messages:
        raise FieldError("fields 'chosen' and 'rejected' are the same, so there is nothing to prefer")
    num_shared = _num_shared(chosen.messages, rejected.messages)
    if not num_shared:
        raise FieldError("fields 'chosen' and 'rejected' share no prompt: they differ before the first assistant turn")
    return Pair(chosen, rejected, num_shared)


def _prompt(row: Row, key: str) -> list[Message] | None:
    value = row.get(key)
    if value is None:
        return None
    return [Message(role="user", content=value)] if isinstance(value, str) else read_messages(value, key)


def _conversation(row: Row, key: str, prompt: list[Message] | None, prompt_key: str) -> list[Message]:
    answer = _messages(required(row, key, _EXPECTED), key)
    if answer[0]["role"] != "assistant":
        _check_beginning(answer, key, prompt, prompt_key)
        check_order(answer, key)
        return answer
    if prompt is None:
        raise FieldError(
            f"field '{key}' has no prompt: add '{prompt_key}' (data.prompt_key), or write the complete"
            " conversation here"
        )
    check_order([*prompt, *answer], f"{prompt_key} + {key}")
    return [*prompt, *answer]


def _messages(value: JsonValue, key: str) -> list[Message]:
    if isinstance(value, str):
        return [Message(role="assistant", content=value)]
    if not isinstance(value, list):
        raise wrong(key, _EXPECTED, value)
    return read_messages(value, key)


def _check_beginning(
    conversation: Sequence[Message], key: str, prompt: Sequence[Message] | None, prompt_key: str
) -> None:
    """Reject a complete conversation that does not start with the row's prompt."""
    asked, begins = list(map(_key, prompt or ())), list(map(_key, conversation))
    if begins[0][0] in SYSTEM_ROLES and asked and asked[0][0] not in SYSTEM_ROLES:
        begins = begins[1:]  # a text prompt cannot contain a system message
    if begins[: len(asked)] != asked:
        raise FieldError(f"field '{key}' is a complete conversation that does not start with '{prompt_key}'")


def _key(message: Mapping[str, object]) -> tuple[object, object]:
    return message["role"], message.get("content")


def _num_shared(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """Return the length of the longest common start after which both dialogues have an assistant turn, or 0."""
    num_equal = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(chosen, rejected, strict=False)))
    places = range(min(num_equal, len(chosen) - 1, len(rejected) - 1), 0, -1)
    return next((at for at in places if chosen[at]["role"] == rejected[at]["role"] == "assistant"), 0)
