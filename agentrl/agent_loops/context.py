"""What the conversations of one rollout share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl.agent_loops.limits import Limits
from agentrl.chat.base import ToolParser
from agentrl.engines.base import SamplingParams
from agentrl.types.operation import Operation

if TYPE_CHECKING:
    from agentrl.agent_loops.conversation import Conversation
    from agentrl.agent_loops.generate import Generate
    from agentrl.chat.format import ChatFormat
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


@dataclass(frozen=True, slots=True)
class ConversationContext:
    """Everything that a conversation needs. All conversations of one rollout share `conversations` and `operations`.

    Attributes:
        images: the names in messages -> image bytes: images of the task and of tool answers.
        operations: the operations of all conversations, in the order in which they ended.
        call_format: name of the tool-call format that `parser` reads.
    """

    chat: ChatFormat
    parser: ToolParser
    limits: Limits
    generate: Generate
    tools: ToolSession | None
    interaction: InteractionSession | None
    sampling: SamplingParams
    conversations: list[Conversation]
    images: dict[str, bytes] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    call_format: str = ""
