"""One model turn, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.agent_loops.base import AgentLoop, Generate
from agentrl.attempt import Rollout
from agentrl.engines.base import SamplingParams
from agentrl.task import Task

if TYPE_CHECKING:
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


class SingleTurnAgent(AgentLoop):
    """The model answers once. No tools are offered."""

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
        """Prompt, answer, end."""
        chat = self.open(task, generate, None, None, sampling)
        await chat.model_turn()
        return chat.rollout()
