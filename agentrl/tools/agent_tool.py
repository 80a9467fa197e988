"""A tool that starts a sub-agent, which the agent loop `sub_agent` runs (docs/context.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.concurrency import Offload
from agentrl.config.rollout import SUB_AGENT, RolloutConfig, SubAgentConfig
from agentrl.errors import ConfigError, Kind, suggestion
from agentrl.tools.arguments import ArgumentsError
from agentrl.tools.base import InfraError
from agentrl.tools.binding import AgentData, BindsItself, BoundTool, ToolInstance
from agentrl.tools.failures import describe
from agentrl.tools.result import Answer
from agentrl.types.messages import FunctionSchema, ToolSchema
from agentrl.types.rollout import Outcome

TASK = "task"
"""Name of the tool's argument."""

RunAgent = Callable[[str], Awaitable[Answer]]
"""Function that runs an agent on the text of a task and returns the agent's answer."""


def agent_tools(rollout: RolloutConfig) -> Sequence[AgentTool]:
    """Return the tool that starts sub-agents if the agent loop is `sub_agent`; otherwise no tool."""
    return [AgentTool(rollout.multi_turn.sub_agent)] if rollout.agent_loop == SUB_AGENT else []


@dataclass(frozen=True)
class AgentTool(BindsItself):
    """The configured tool that starts sub-agents."""

    options: SubAgentConfig

    @property
    def name(self) -> str:
        """Name by which the model calls the tool."""
        return self.options.name

    def bound(self, deadline_s: float, offload: Offload) -> BoundTool:
        """Return the tool for the toolbox. Its calls have no timeout; the sub-agent's own tool calls have one."""
        return BoundAgentTool(self.options, deadline_s, offload)


class BoundAgentTool(BoundTool):
    """A bound `AgentTool`. The agent loop runs the calls of this tool; see `ToolSession.view`."""

    def __init__(self, options: SubAgentConfig, deadline_s: float, offload: Offload) -> None:
        text: JsonValue = {
            "type": "string",
            "description": "What the assistant shall do, with everything it needs to know.",
        }
        function = FunctionSchema(
            name=options.name,
            description=options.description,
            parameters={"type": "object", "properties": {TASK: text}, "required": [TASK]},
        )
        super().__init__(ToolSchema(function=function), deadline_s, offload)
        self.options, self.deterministic = options, True

    def instance(self, data: AgentData) -> ToolInstance:
        """Not used: the agent loop runs the calls."""
        raise RuntimeError(f"tool '{self.name}' is run by the agent loop")


def check_agent_tools(tools: Mapping[str, BoundTool]) -> None:
    """Refuse unknown names in `rollout.multi_turn.sub_agent.tools`.

    Raises:
        ConfigError: the message names the key and the nearest name.
    """
    others = [name for name, tool in tools.items() if not isinstance(tool, BoundAgentTool)]
    key = "rollout.multi_turn.sub_agent.tools"
    for tool in tools.values():
        for name in (tool.options.tools or ()) if isinstance(tool, BoundAgentTool) else ():
            if name not in others:
                why = f"`{key}`: there is no tool '{name}': {suggestion(name, others)}"
                raise ConfigError.at(key, Kind.NOT_FOUND, why)


async def answer_of(tool: BoundTool, arguments: str, run: RunAgent) -> tuple[Answer, Outcome]:
    """Run an agent for one call. Wrong arguments and `InfraError` become outcomes; other exceptions are raised."""
    try:
        task = str(tool.reader.read(arguments)[TASK])
    except ArgumentsError as error:
        return Answer(f"Error: {error}"), Outcome.FORMAT_ERROR
    try:
        answer = await run(task)
    except InfraError as error:
        return Answer(f"Error: {describe(error)}"), Outcome.INFRA_ERROR
    return answer, answer.outcome
