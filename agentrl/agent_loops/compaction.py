"""Agent loop that replaces a long conversation by a summary that the model writes (docs/context.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.agent_loops.base import AgentLoop, Generate
from agentrl.agent_loops.conversation import Conversation
from agentrl.chat.base import ParsedTurn
from agentrl.chat.probes import CALL_ID, RESULT, USER
from agentrl.config.rollout import COMPACTION
from agentrl.engines.base import SamplingParams
from agentrl.errors import TemplateError
from agentrl.security.control_text import escape_control_text
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.task import Task, with_observation

if TYPE_CHECKING:
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession

SUMMARY = "\n\nSummary of your work so far:\n"
"""Text between the task and the summary in the new prompt."""
_PROBE = "zqASKqz"


class CompactionConversation(Conversation):
    """A conversation that asks the model for a summary once the conversation is long.

    The request is a user message after the answers of tools or of the simulated user, in the same segment as the
    answers.

    Attributes:
        asked: whether a summary was requested; the model's next turn should then be the summary.
        num_compactions: number of summaries that the model wrote in this rollout before this conversation began.
    """

    asked = False
    num_compactions = 0

    def completed(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Add the request for a summary if `messages` bring the used share of tokens to `compaction.share` or more.

        After `compaction.max_compactions` summaries, no request is added.
        """
        options = self._limits.multi_turn.compaction
        if self.num_compactions == options.max_compactions or self._share_with(messages) < options.share:
            return messages
        self.asked = True
        return [*messages, Message(role="user", content=options.instruction)]

    async def continued(self, task: Task, turn: ParsedTurn) -> CompactionConversation:
        """Return the conversation that continues from the task and the summary in `turn`.

        A turn with tool calls or without text is not a summary. In this case, this conversation ends and is returned,
        and the calls of the turn are not run.
        """
        if turn.calls or not turn.content.strip():
            self.stop = Stop.NO_SUMMARY
            await self.tool_turn(turn)
            return self
        successor = self.restart(with_observation(task, SUMMARY + summary_text(turn)).messages)
        assert isinstance(successor, CompactionConversation)  # `restart` keeps the class
        successor.num_compactions = self.num_compactions + 1
        return successor

    def _share_with(self, messages: Sequence[Message]) -> float:
        """Return (tokens used after the prompt) / (tokens allowed after the prompt), with `messages` appended."""
        num_used = len(self.trajectory.token_ids) - self._opening_lengths[1]
        *_, num_added = self._addition(messages)
        return (num_used + num_added) / (num_used + self.num_tokens_left)


class CompactionAgent(AgentLoop):
    """Calls tools like `tool_agent`. When the conversation is long, the model writes a summary of it.

    The summary is trained like every turn. The rollout continues in a further trajectory, whose prompt is the task's
    prompt with the summary appended. Limits on turns and calls apply to the whole rollout; `data.max_response_length`
    applies to each trajectory.
    """

    conversation_class = CompactionConversation

    def check_template(self, schemas: Sequence[ToolSchema], *, with_users: bool) -> None:
        """Check that the chat template allows a request for a summary after answers of tools and of simulated users."""
        name = schemas[0].name if schemas else ""
        tool = Message(role="tool", name=name, tool_call_id=CALL_ID, content=RESULT)
        for answer in (*([tool] if schemas else []), *([USER] if with_users else [])):
            try:
                shown = self.chat.template.follow([answer, Message(role="user", content=_PROBE)], schemas)
            except TemplateError as error:
                shown, why = "", f": {error}"
            else:
                why = ": the rendered prompt does not contain the request"
            if _PROBE not in shown:
                role = answer["role"]
                raise TemplateError(
                    f"agent loop '{COMPACTION}' asks for a summary in a user message after an answer of a {role}, but"
                    f" the chat template refuses this{why}"
                )

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
        assert isinstance(chat, CompactionConversation)  # set by `conversation_class`
        while turn := await chat.model_turn():
            if chat.asked:
                chat = await chat.continued(task, turn)
            elif turn.calls:
                await chat.tool_turn(turn)
            elif not await chat.user_turn():
                break
        return chat.rollout()


def summary_text(turn: ParsedTurn) -> str:
    """Return the summary for the next prompt, escaped so that its text never becomes a control token."""
    return escape_control_text(turn.content.strip())
