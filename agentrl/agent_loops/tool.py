"""Agent loop that calls tools until the model answers, with an optional simulated user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.agent_loops.base import AgentLoop, Conversation, Generate
from agentrl.engines.base import SamplingParams
from agentrl.tools.task_folders import task_folder_state
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


class ToolAgent(AgentLoop):
    """Runs and answers the model's calls. A turn without a call goes to the simulated user, or ends the rollout.

    In a task folder with several steps, such a turn ends the step. The next user message is the next step's
    instruction.
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
        while await next_step(chat, tools):
            await call_tools(chat)
        return chat.rollout()


async def next_step(chat: Conversation, tools: ToolSession | None) -> bool:
    """Append the instruction of the next step of a task folder, if the model has finished a step.

    Return False if there is no next step, or if a limit was reached.

    Raises:
        InfraError: the finished step cannot be scored, or the next step cannot begin.
    """
    folder = None if tools is None else task_folder_state(tools.data)
    if folder is None or chat.stop is not Stop.FINISHED or (text := await folder.next_step()) is None:
        return False
    chat.stop = None
    return chat.say(text)


async def call_tools(chat: Conversation) -> None:
    """Run turns until the model is done or a limit is reached."""
    while turn := await chat.model_turn():
        if turn.calls:
            await chat.tool_turn(turn)
        elif not await chat.user_turn():
            break
