"""What the rows of a dataset ask for, held against what there is before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentrl.agent_loops.base import AgentLoop
from agentrl.agent_loops.loading import LoopFactory
from agentrl.chat.parsers import check_parser
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError, TemplateError, UnknownNameError
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.session import chosen
from agentrl.task import Task
from agentrl.tools.toolbox import Toolbox, ToolSession

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

Kind = tuple[str | None, str | None]
"""(agent loop, tool format) as a row names them; None is the configured one."""


class RowCheck:
    """Checks the rows of one dataset, one by one.

    Raises:
        ConfigError, UnknownNameError: the default agent loop cannot be built.
    """

    def __init__(
        self, chat: ChatFormat, toolbox: Toolbox, config: RunConfig, interactions: Mapping[str, BaseInteraction] | None
    ) -> None:
        self._chat = chat
        self._toolbox = toolbox
        self._config = config
        self._interactions = interactions or {}
        self._loops = LoopFactory(chat, config)
        self._kinds: dict[Kind, AgentLoop] = {}

    def prompt_length(self, task: Task) -> int:
        """Tokens of the prompt as the row's agent loop puts it, with the tools the row is offered.

        Raises:
            DataError: the row names a loop, tool format, tool or interaction that is not there or does not fit the
                chat template, or the template refuses its messages. The text does not name the row.
            ConfigError, TemplateError, UnknownNameError: what is configured does not fit the template.
        """
        kind = (task.agent_name, task.tool_options.tool_format)
        if kind not in self._kinds:
            self._kinds[kind] = self._checked_loop(kind)
        loop = self._kinds[kind]
        if loop.uses_tools:
            self._toolbox.check(task)
        if self._interactions and "user" in loop.roles:
            chosen(self._interactions, task)
        try:
            return len(self._loops.build(*kind).prompt(task, ToolSession(self._toolbox, task)).trajectory.token_ids)
        except TemplateError as error:
            raise DataError(str(error)) from error

    def finish(self) -> None:
        """Once all rows were checked.

        Raises:
            ConfigError: tools are configured, but no row's agent loop calls any.
        """
        if self._toolbox.schemas and not any(loop.uses_tools for loop in self._kinds.values()):
            default = self._config.rollout.agent.default_agent_loop
            names = ", ".join(sorted({name or default for name, _ in self._kinds}))
            raise ConfigError(
                f"tools are configured, but agent loop '{names}' calls none:"
                " set rollout.agent.default_agent_loop=tool_agent"
            )

    def _checked_loop(self, kind: Kind) -> AgentLoop:
        try:
            loop = self._loops.build(*kind)
            self._check_template(loop, kind[1])
        except (ConfigError, TemplateError, UnknownNameError) as error:
            if kind == (None, None):
                raise
            raise DataError(f"{_asked(kind)}: {error}") from error
        return loop

    def _check_template(self, loop: AgentLoop, tool_format: str | None) -> None:
        schemas = self._toolbox.schemas
        uses_tool_role = bool(schemas) and "tool" in loop.roles
        if uses_tool_role:
            name = loop.tool_format or tool_format or self._config.rollout.multi_turn.format
            check_parser(name, self._chat, schemas)
        roles = [role for role in loop.roles if role != "tool" or uses_tool_role]
        self._chat.check(schemas if uses_tool_role else (), roles)


def _asked(kind: Kind) -> str:
    names = ("field 'agent_name'", "field 'tool_config.tool_format'")
    return " and ".join(name for name, value in zip(names, kind, strict=True) if value is not None)
