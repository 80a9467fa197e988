"""Agent loop with a tool that starts sub-agents (docs/context.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.agent_loops.base import Generate
from agentrl.agent_loops.conversation import Conversation
from agentrl.agent_loops.tool import ToolAgent, call_tools
from agentrl.config.rollout import SUB_AGENT, SubAgentConfig
from agentrl.engines.base import SamplingParams
from agentrl.errors import ConfigError, Kind
from agentrl.security.control_text import escape_control_text
from agentrl.tools.result import Answer
from agentrl.types.messages import Message, message_text
from agentrl.types.rollout import Outcome, Stop
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession

_LIMITS = ("max_assistant_turns", "max_turn_tokens")
"""Limits of `rollout.multi_turn` that can be set separately for sub-agents."""


class SubAgent(ToolAgent):
    """Calls tools like `tool_agent`. One of the tools gives a task to a sub-agent and returns the sub-agent's answer.

    A sub-agent has its own conversation, with the tools and limits of `rollout.multi_turn.sub_agent`, and no
    simulated user. The sub-agent's trajectories belong to the rollout. Sub-agents of one turn run at the same time.
    """

    def open(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
        *,
        messages: Sequence[Message] | None = None,
        parent: Conversation | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> Conversation:
        """Start a conversation. It can start sub-agents unless these would be nested deeper than `sub_agent.depth`.

        Raises:
            ConfigError: no tool starts sub-agents, because this loop is selected by rows but is not the default loop.
        """
        options, depth = self.config.rollout.multi_turn.sub_agent, self._depth(parent)
        agents, view = None, tools
        if tools is not None:
            _check_has_tool(tools)
            agents = _SubAgents(self, task, generate, tools, sampling) if depth < options.depth else None
            names = {*options.tools, options.name} if depth and options.tools is not None else None
            view = tools.view(names, agents)
        chat = super().open(
            *(task, generate, view, interaction, sampling), messages=messages, parent=parent, limits=limits
        )
        if agents is not None:
            agents.parent = chat
        return chat

    def _depth(self, parent: Conversation | None) -> int:
        """Return 0 for the main agent, 1 for the sub-agents that it starts, and so on."""
        return 0 if parent is None else len(self.places[parent.last_turn[0]]) // 2 + 1


@dataclass(slots=True)
class _SubAgents:
    """Runs the sub-agents that one conversation starts.

    Attributes:
        parent: the conversation that starts the sub-agents; None until it is open.
    """

    loop: SubAgent
    task: Task
    generate: Generate
    tools: ToolSession
    sampling: SamplingParams
    parent: Conversation | None = None

    async def __call__(self, text: str) -> Answer:
        """Run a sub-agent on the task `text`; return the sub-agent's last answer.

        The conversation is opened before the first await, so that sub-agents of one turn are opened in call order.
        """
        options = self.loop.config.rollout.multi_turn.sub_agent
        limits = {name: value for name in _LIMITS if (value := getattr(options, name)) is not None}
        chat = self.loop.open(
            *(self.task, self.generate, self.tools, None, self.sampling),
            messages=_opening(self.task, text, options),
            parent=self.parent,
            limits=limits,
        )
        await call_tools(chat)
        return _answer_of(chat)


def _opening(task: Task, text: str, options: SubAgentConfig) -> list[Message]:
    """Return the first messages of a sub-agent. The model wrote `text`, so control tokens in it are escaped."""
    system = [each for each in task.messages[:1] if each["role"] == "system"]
    if options.instructions is not None:
        system = [Message(role="system", content=options.instructions)]
    return [*system, Message(role="user", content=escape_control_text(text))]


def _answer_of(chat: Conversation) -> Answer:
    if chat.stop is not Stop.FINISHED:
        return Answer(f"Error: the assistant gave no answer: {chat.stop}", outcome=Outcome.TOOL_ERROR)
    text = message_text(chat.trajectory.messages[-1]).strip()
    return Answer(text) if text else Answer("Error: the assistant wrote nothing", outcome=Outcome.TOOL_ERROR)


def _check_has_tool(tools: ToolSession) -> None:
    if not tools.has_agent_tool:
        key = "rollout.agent.default_agent_loop"
        why = f"agent loop '{SUB_AGENT}' must be the run's default: set `{key}={SUB_AGENT}`, which adds the tool for it"
        raise ConfigError.at(key, Kind.CONFLICT, why)
