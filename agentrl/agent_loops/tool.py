"""The agent that calls tools until it answers, and may talk with a simulated user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.agent_loops.base import AgentLoop, Generate
from agentrl.attempt import Rollout
from agentrl.engines.base import SamplingParams
from agentrl.task import Task

if TYPE_CHECKING:
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


class ToolAgent(AgentLoop):
    """The model's calls are run and answered; a turn without a call goes to the simulated user, or ends the rollout."""

    async def run(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
    ) -> Rollout:
        """Turn by turn, until the model is done or a limit is reached."""
        chat = self.open(task, generate, tools, interaction, sampling)
        while turn := await chat.model_turn():
            if turn.calls:
                await chat.tool_turn(turn)
            elif not await chat.user_turn():
                break
        return chat.rollout()
