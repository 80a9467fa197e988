"""Agent loop that calls tools until the model answers, with an optional simulated user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.agent_loops.base import AgentLoop, Conversation, Generate
from agentrl.engines.base import SamplingParams
from agentrl.types.rollout import Rollout
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


class ToolAgent(AgentLoop):
    """Runs and answers the model's calls. A turn without a call goes to the simulated user, or ends the rollout.

    In a task folder with several steps it ends the step, and the next user message is the instruction of the next one.
    """

    follows_steps = True

    async def run(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
    ) -> Rollout:
        """Run turns until the model is done or a limit is reached."""
        chat = self.open(task, generate, tools, interaction, sampling)
        await call_tools(chat)
        while await chat.step_turn():
            await call_tools(chat)
        return chat.rollout()


async def call_tools(chat: Conversation) -> None:
    """Run turns until the model is done or a limit is reached."""
    while turn := await chat.model_turn():
        if turn.calls:
            await chat.tool_turn(turn)
        elif not await chat.user_turn():
            break
