"""Agent loop with a single model turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.agent_loops.base import AgentLoop, Generate
from agentrl.engines.base import SamplingParams
from agentrl.types.rollout import Rollout
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


class SingleTurnAgent(AgentLoop):
    """The model answers once, without tools."""

    roles = ()
    uses_tools = False

    async def run(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
    ) -> Rollout:
        """Sample one turn, then end the rollout."""
        chat = self.open(task, generate, None, None, sampling)
        await chat.model_turn()
        return chat.rollout()
