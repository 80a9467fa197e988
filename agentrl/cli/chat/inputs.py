"""Inputs of `agentrl chat`: tokenizer, tools, and the first messages of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agentrl.chat.example import EXAMPLE_TOOLS, QUESTION
from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig
from agentrl.data.dialogues import read_dialogue, read_tools
from agentrl.data.fields import FieldError
from agentrl.data.rows.open import open_rows
from agentrl.data.rows.scan import first_row
from agentrl.data.tasks import read_task
from agentrl.errors import AgentRLError, ConfigError, Problem, problems_in
from agentrl.security.json_depth import parse
from agentrl.tools.agent_tool import agent_tools
from agentrl.tools.toolbox import load_toolbox
from agentrl.trainer.builders.rollouts import load_chat
from agentrl.types.messages import Message, ToolSchema

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Inputs:
    """A model's chat format, tools, and the first messages of a conversation."""

    chat: ChatFormat
    schemas: Sequence[ToolSchema]
    start: Sequence[Message]


def read_inputs(config: RunConfig, tools: Path | None, data: str | None) -> Inputs:
    """Read all inputs.

    Args:
        tools: JSON file of tool schemas. None: the tools of the configuration, or two example tools if it has none.
        data: file or dataset whose first row starts the conversation; None: an example question starts it.

    Raises:
        ConfigError: an input cannot be read; one line per mistake.
    """
    problems: list[Problem] = []

    def collected(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except AgentRLError as error:
            problems.extend(problems_in(error))
            return None

    chat = collected(lambda: load_chat(config))
    schemas = collected(lambda: read_schemas(tools) if tools else _configured(config) or EXAMPLE_TOOLS)
    start = collected(lambda: _first_messages(config, data) if data else [QUESTION])
    if chat is None or schemas is None or start is None:
        raise ConfigError(*problems)
    return Inputs(chat, schemas, start)


def read_schemas(path: Path) -> list[ToolSchema]:
    """Read a JSON file with a list of tool schemas.

    Raises:
        ConfigError: the file cannot be read, or a schema is invalid.
    """
    try:
        found = read_tools(parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not valid JSON: {error}"
        raise ConfigError.keyless(f"--tools: {path}: {reason}") from error
    except FieldError as error:
        raise ConfigError.keyless(f"--tools: {path}: {error}") from error
    if found is None:
        raise ConfigError.keyless(f"--tools: {path}: expected a list of tool schemas, got none")
    return found


def _configured(config: RunConfig) -> Sequence[ToolSchema]:
    return load_toolbox(config.rollout.multi_turn, extra_tools=agent_tools(config.rollout)).schemas


def _first_messages(config: RunConfig, data: str) -> Sequence[Message]:
    rows = open_rows(data)
    row = first_row([rows])
    try:
        if "messages" not in row:
            return read_task(config.data, row, 0, rows.source).messages
        messages = read_dialogue(row, config.data.system_prompt).messages
    except FieldError as error:
        raise ConfigError.keyless(f"--data: {rows.where(0)}: {error}") from error
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant" and index]
    return messages[: turns[0]]
