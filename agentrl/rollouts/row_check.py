"""Checks the names in dataset rows (agent loops, tools, simulated users) before anything expensive is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from agentrl.agent_loops.base import AgentLoop
from agentrl.agent_loops.loading import LoopFactory, configured_loops, find_loop, refuse_code_of_row, refuse_strip
from agentrl.chat.parsers import AUTO, check_parser
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.served import check_history
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError, Kind, TemplateError, UnknownNameError
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.session import check_interaction
from agentrl.tools.agent_tool import check_agent_tools
from agentrl.tools.task_folders import NO_SANDBOX, folder_of, has_steps
from agentrl.tools.toolbox import Toolbox, ToolSession
from agentrl.types.messages import ToolSchema
from agentrl.types.task import Task
from agentrl.types.template_variables import COLUMN

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

LoopKey = tuple[str | None, str | None, str | None]
"""(agent loop, tool format, template variables as JSON) of a row; None: the configured value."""


class LoopTraits(NamedTuple):
    """Properties of a row's agent loop that the check of the row needs."""

    uses_tools: bool
    runs_task_folders: bool
    uses_task_sandbox: bool
    follows_steps: bool
    roles: tuple[str, ...]


class RowNames:
    """Checks the names and the tool arguments in rows. Needs no model."""

    def __init__(
        self, toolbox: Toolbox, config: RunConfig, interactions: Mapping[str, BaseInteraction] | None = None
    ) -> None:
        self._toolbox = toolbox
        self._config = config
        self._interactions = interactions or {}
        self._tool_users: dict[str, bool] = {}
        self._entries = configured_loops(config)

    def check(self, task: Task) -> None:
        """Look up the agent loop, tools and simulated user of a row.

        Raises:
            DataError: the row has an unknown name, or arguments that the tool does not accept. The message does not
                name the row.
            ConfigError, UnknownNameError: the default agent loop is unknown.
        """
        name = task.agent_name or self._config.rollout.agent_loop
        refuse_code_of_row(self._config, self._entries, task.agent_name, task.tool_options.tool_format)
        try:
            loop = find_loop(name, self._entries)
        except UnknownNameError as error:
            if task.agent_name is None:
                raise
            raise DataError(f"field 'agent_name': {error}") from error
        self._check_parts(task, name, loop)

    def finish(self) -> None:
        """Check the configured tools once all rows were checked.

        Raises:
            ConfigError: tools are configured, but no row's agent loop calls tools; or a sub-agent has an unknown tool.
        """
        check_agent_tools(self._toolbox.tools)
        if self._toolbox.schemas and self._tool_users and not any(self._tool_users.values()):
            raise ConfigError.at(
                "rollout.agent.default_agent_loop",
                Kind.CONFLICT,
                f"tools are configured, but agent loop '{', '.join(sorted(self._tool_users))}' calls none:"
                " set rollout.agent.default_agent_loop=tool_agent",
            )

    def _check_parts(self, task: Task, name: str, loop: object) -> None:
        has_folder = folder_of(task) is not None
        uses_tools = _trait(loop, "uses_tools") or (has_folder and _trait(loop, "uses_task_sandbox"))
        self._tool_users[name] = self._tool_users.get(name, False) or uses_tools
        if uses_tools:
            self._toolbox.check(task)
        elif has_folder and not _trait(loop, "runs_task_folders"):
            raise DataError(NO_SANDBOX)
        if not _trait(loop, "follows_steps") and has_steps(task):
            raise DataError(f"agent loop '{name}' cannot run tasks of several steps: use tool_agent or a harness")
        if self._interactions and "user" in getattr(loop, "roles", AgentLoop.roles):
            check_interaction(self._interactions, task)


class RowCheck(RowNames):
    """Checks the rows of one dataset, one by one, and measures their prompts.

    Raises:
        ConfigError, UnknownNameError: the default agent loop cannot be built.
    """

    def __init__(
        self, chat: ChatFormat, toolbox: Toolbox, config: RunConfig, interactions: Mapping[str, BaseInteraction] | None
    ) -> None:
        super().__init__(toolbox, config, interactions)
        self._chat = chat
        self._loops = LoopFactory(chat, config)
        self._checked: dict[LoopKey, LoopTraits] = {}

    def prompt_length(self, task: Task) -> int:
        """Return the number of prompt tokens of a row, with the row's agent loop and the row's tools.

        Raises:
            DataError: the row names a loop, tool format, tool or interaction that is unknown or does not fit the chat
                template, or the template rejects the row's messages. The message does not name the row.
            ConfigError, TemplateError, UnknownNameError: the configuration does not fit the template.
        """
        variables = task.template_variables
        name, tool_format = task.agent_name, task.tool_options.tool_format
        key = (name, tool_format, json.dumps(dict(variables), sort_keys=True) if variables else None)
        if key not in self._checked:
            self._checked[key] = self._checked_loop(key, variables)
        self._check_parts(task, task.agent_name or self._config.rollout.agent_loop, self._checked[key])
        loop = self._loops.build(name, tool_format, variables)
        try:
            return len(loop.prompt(task, ToolSession(self._toolbox, task)).trajectory.token_ids)
        except TemplateError as error:
            raise DataError(str(error)) from error

    def _checked_loop(self, key: LoopKey, variables: Mapping[str, JsonValue]) -> LoopTraits:
        try:
            loop = self._loops.build(*key[:2], variables)
            self._check_template(loop, key)
        except (ConfigError, TemplateError, UnknownNameError) as error:
            if not any(key):
                raise
            raise DataError(f"{_asked(key)}: {error}") from error
        return LoopTraits(
            loop.uses_tools, loop.runs_task_folders, loop.uses_task_sandbox, loop.follows_steps, loop.roles
        )

    def _check_template(self, loop: AgentLoop, key: LoopKey) -> None:
        schemas, chat = self._toolbox.schemas, loop.chat
        uses_tool_role = bool(schemas) and "tool" in loop.roles
        if uses_tool_role:
            self._check_chosen(loop, key[1])
            check_parser(loop.call_format, chat, schemas)
        roles = [role for role in loop.roles if role != "tool" or uses_tool_role]
        chat.check(schemas if uses_tool_role else (), roles)
        with_users = bool(self._interactions) and "user" in loop.roles
        loop.check_template(schemas if uses_tool_role else (), with_users=with_users)
        if self._config.rollout.multi_turn.thinking == "strip":
            shown = schemas if uses_tool_role else ()
            _check_strip(loop, key[0] or self._config.rollout.agent_loop, chat, shown)

    def _check_chosen(self, loop: AgentLoop, tool_format: str | None) -> None:
        """Refuse the run if loop, row and configuration all choose the tool format `auto`, and no format fits."""
        named = (loop.tool_format or AUTO, tool_format or AUTO, self._config.rollout.multi_turn.format)
        if all(each == AUTO for each in named) and (problem := find_format(self._chat).problem):
            raise ConfigError.at("rollout.multi_turn.format", Kind.CONFLICT, problem)


def _trait(loop: object, name: str) -> bool:
    """Return the flag `name` of `loop`, which is a loop, the class of a loop or a factory of loops."""
    return bool(getattr(loop, name, getattr(AgentLoop, name)))


def _check_strip(loop: AgentLoop, name: str, chat: ChatFormat, schemas: Sequence[ToolSchema]) -> None:
    refuse_strip(loop, name)
    try:
        check_history(chat.template, schemas)
    except TemplateError as error:
        key = "rollout.multi_turn.thinking"
        why = f"`{key}=strip` needs a chat template that renders calls and their answers: {error}"
        raise ConfigError.at(key, Kind.CONFLICT, why) from error


def _asked(key: LoopKey) -> str:
    names = ("field 'agent_name'", "field 'tool_config.tool_format'", f"field '{COLUMN}'")
    return " and ".join(name for name, value in zip(names, key, strict=True) if value is not None)
