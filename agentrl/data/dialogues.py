"""Dialogues from rows: complete conversations for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from agentrl.config.data import DataConfig
from agentrl.data.fields import SYSTEM_ROLES, FieldError, parse_json, read_messages, required, with_system, wrong
from agentrl.data.rows.base import Row, Rows
from agentrl.data.rows.table import Table, load_table
from agentrl.errors import DataError
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.template_variables import COLUMN, NONE, read_template_variables


class Dialogue(NamedTuple):
    """A conversation, the tools offered to the assistant, and variables of the chat template."""

    messages: list[Message]
    tools: list[ToolSchema] | None
    variables: Mapping[str, JsonValue] = NONE


def load_dialogues(files: Sequence[str], config: DataConfig, *, max_samples: int = -1) -> Table[Dialogue]:
    """Load the dialogues of `files`: column `messages` and, if present, `tools` and `chat_template_kwargs`.

    `tools` is a list of schemas, or this list as JSON text. `chat_template_kwargs`: see `read_variables`.

    `config.system_prompt` is prepended to dialogues without a system message.

    Raises:
        DataError: a file or a row is invalid; the message names file, row and field. Every row is checked here.
    """

    def read(row: Row, position: int, rows: Rows) -> Dialogue:
        return read_dialogue(row, config.system_prompt)

    return load_table(files, read, max_samples)


def read_dialogue(row: Row, system_prompt: str | None = None) -> Dialogue:
    """Read the dialogue of a row.

    Raises:
        FieldError: the row has no dialogue that can be trained on.
    """
    messages = read_messages(required(row, "messages", "a list of messages"), "messages")
    check_order(messages, "messages")
    return Dialogue(with_system(messages, system_prompt), read_tools(row.get("tools")), read_variables(row))


def read_variables(row: Row) -> Mapping[str, JsonValue]:
    """Read the row's variables of the chat template: an object, or this object as JSON text.

    Raises:
        FieldError: the variables are invalid.
    """
    try:
        return read_template_variables(parse_json(row.get(COLUMN) or None, COLUMN))
    except DataError as error:
        raise FieldError(str(error)) from error


def check_order(messages: Sequence[Message], field: str) -> None:
    """Reject messages in an invalid order, or without an assistant turn.

    Raises:
        FieldError: the order is invalid, or there is no assistant turn; the message names `field`.
    """
    roles = [message["role"] for message in messages]
    for i, role in enumerate(roles):
        if role in SYSTEM_ROLES and i:
            raise FieldError(f"field '{field}[{i}]': a {role} message must come first")
    for i, (before, role) in enumerate(pairwise(["", *roles])):
        if role == before != "tool":
            raise FieldError(f"field '{field}[{i}]': two {role} messages in a row, expected alternating turns")
        if role == "tool" and before != "tool" and not (i and messages[i - 1].get("tool_calls")):
            raise FieldError(f"field '{field}[{i}]': this tool message answers no tool call")
    if "assistant" not in roles:
        raise FieldError(f"field '{field}': no assistant turn, so there is nothing to learn")


def read_tools(value: JsonValue) -> list[ToolSchema] | None:
    """Read tool schemas from a list, or from this list as JSON text; return None if there are none.

    Raises:
        FieldError: the value is not a list, or a schema is invalid.
    """
    if not value:
        return None
    tools = parse_json(value, "tools")
    if not isinstance(tools, list):
        raise wrong("tools", "a list of tool schemas", tools)
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)] or None


def _tool(value: JsonValue, field: str) -> ToolSchema:
    wrapped = value if isinstance(value, dict) and "function" in value else {"function": value}
    try:
        return ToolSchema.model_validate(wrapped)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in (field, *first["loc"]))
        raise FieldError(
            f"field '{key}': {first['msg']}, expected {{function: {{name, description, parameters}}}}"
        ) from error
