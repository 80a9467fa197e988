"""ReAct: thoughts, actions and observations as plain text (Yao et al. 2022, arXiv:2210.03629)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentrl.agent_loops.conversation import Conversation
from agentrl.agent_loops.tool import ToolAgent
from agentrl.chat.base import ParsedCall
from agentrl.types.messages import Message, ToolSchema

INSTRUCTIONS = """Answer the question as well as you can. You have these tools:

{tools}

Write in this form:

Thought: what to do next
Action: the tool to use, one of {names}
Action Input: its arguments, a JSON object

You will then read the tool's answer after "Observation:". Repeat as often as you need, then write:

Thought: I know the answer
Final Answer: the answer"""


class ReactConversation(Conversation):
    """A conversation in which tools and tool answers are plain text."""

    form = "react"

    @property
    def template_schemas(self) -> Sequence[ToolSchema]:
        """No schemas: the system message describes the tools."""
        return ()

    def opening(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Put the instructions before the existing system message, if there is one."""
        if not self.schemas:
            return messages
        system = instructions(self.schemas)
        if messages and messages[0]["role"] == "system":
            own, messages = messages[0].get("content"), messages[1:]
            system = f"{system}\n\n{own}"
        return [Message(role="system", content=system), *messages]

    def answer_messages(self, calls: Sequence[ParsedCall], texts: Sequence[str]) -> list[Message]:
        """Return one user message with all answers."""
        return [Message(role="user", content="\n".join(f"Observation: {text}" for text in texts))]


class ReactAgent(ToolAgent):
    """Describes tools in the system message, and sends tool answers as "Observation: ..." in a user message.

    Works with any chat template. The model's turn ends at "Observation:". A turn without an action goes to the
    simulated user, or ends the rollout.
    """

    tool_format = "react"
    roles = ("user",)
    # with `strip`, the chat template renders earlier turns again, and would write the calls in the template's format
    strips_thinking = False
    conversation_class = ReactConversation


def instructions(schemas: Sequence[ToolSchema]) -> str:
    """Return the instructions for the model: the tools and the format."""
    functions = [schema.function for schema in schemas]
    tools = "\n".join(f"{each.name}: {each.description} Arguments: {json.dumps(each.parameters)}" for each in functions)
    return INSTRUCTIONS.format(tools=tools, names=", ".join(each.name for each in functions))
