"""Further trajectories of a conversation, for `rollout.multi_turn.thinking=strip`.

Some chat templates drop the thoughts of earlier turns. An inference server renders all messages again for every turn,
so the model's context lacks these thoughts. With `strip`, agentrl appends the answers to a turn as such a server would:

- The template renders all messages so far. If the rendered tokens begin with the trajectory's tokens, the remaining
  tokens are appended, and the trajectory continues.
- Otherwise the trajectory ends with the model's turn. The conversation continues in a further trajectory of the same
  rollout, whose prompt is the rendered tokens. Earlier sampled tokens are prompt tokens in the further trajectory, so
  each sampled token is trained only once.
- If the template refuses the messages, for example because a malformed call has no arguments, the trajectory continues
  as with `thinking=keep`. An inference server would end the conversation instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.errors import TemplateError
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentrl.agent_loops.context import ConversationContext


@dataclass(frozen=True, slots=True)
class Further:
    """Start of a further trajectory: all messages so far, and their tokens with the generation prompt."""

    messages: Sequence[Message]
    token_ids: Sequence[int]

    def num_added(self, trajectory: Trajectory) -> int:
        """Number of tokens by which the context becomes longer; negative if it becomes shorter."""
        return len(self.token_ids) - len(trajectory.token_ids)


def served(
    context: ConversationContext,
    trajectory: Trajectory,
    messages: Sequence[Message],
    schemas: Sequence[ToolSchema],
    num_opening: int,
) -> list[int] | Further | None:
    """Return the tokens to append for `messages`, or the further trajectory that the conversation continues in.

    Return None with `thinking=keep`, or if the template refuses the messages; the caller then renders only `messages`.

    Args:
        num_opening: number of messages with which the conversation was opened.
    """
    if context.limits.multi_turn.thinking == "keep":
        return None
    extended, num_context = [*trajectory.messages, *messages], len(trajectory.token_ids)
    try:
        prompt = context.chat.served(extended, schemas, context.images, num_opening=num_opening)
    except TemplateError:
        return None
    return prompt[num_context:] if prompt[:num_context] == trajectory.token_ids else Further(extended, prompt)
