"""Objects that the conversations of one rollout share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl.agent_loops.limits import Limits
from agentrl.agent_loops.places import Place, in_order, place_of_next, stream_of
from agentrl.chat.base import ToolParser
from agentrl.engines.base import Completion, SamplingParams
from agentrl.types.messages import Message
from agentrl.types.operation import Operation
from agentrl.types.rollout import Outcome, Rollout, Stop
from agentrl.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentrl.agent_loops.conversation import Conversation
    from agentrl.agent_loops.generate import Generate
    from agentrl.chat.format import ChatFormat
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


@dataclass(frozen=True, slots=True)
class ConversationContext:
    """Everything that a conversation needs. All conversations of one rollout share the lists and mappings.

    Attributes:
        trajectories: the trajectories of all conversations; a conversation has several trajectories if its history was
            rendered again, see `agent_loops.further`.
        images: name of the image in messages -> image bytes, for images of the task and of tool answers.
        operations: the operations of all conversations, in the order in which they ended.
        call_format: name of the tool-call format that `parser` reads.
        places: the `Place` of each trajectory, see `agent_loops.places`.
        path: path of the agent that has this conversation, see `agent_loops.places`.
    """

    chat: ChatFormat
    parser: ToolParser
    limits: Limits
    generate: Generate
    tools: ToolSession | None
    interaction: InteractionSession | None
    sampling: SamplingParams
    conversations: list[Conversation]
    trajectories: list[Trajectory]
    images: dict[str, bytes] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    call_format: str = ""
    places: list[Place] = field(default_factory=list)
    path: Place = ()

    def new_trajectory(self, messages: Sequence[Message]) -> tuple[int, Trajectory]:
        """Add a trajectory without tokens to the rollout; return its position and the trajectory."""
        self.places.append(place_of_next(self.places, self.path))
        self.trajectories.append(Trajectory((), messages))
        return len(self.trajectories) - 1, self.trajectories[-1]

    def rollout(self, stop: Stop) -> Rollout:
        """Return the rollout: trajectories, turn rewards, calls and operations of all conversations."""
        rewards = [reward for each in self.conversations for reward in each.turn_rewards]
        calls = [call for each in self.conversations for call in each.tool_calls]
        rollout = Rollout(
            list(self.trajectories),
            stop=stop,
            turn_rewards=sorted(rewards, key=lambda reward: reward.trajectory),
            tool_calls=sorted(calls, key=lambda call: call.trajectory),
            operations=self.operations,
        )
        return in_order(rollout, self.places)

    @property
    def num_calls(self) -> int:
        """Number of calls of all conversations that count towards `max_tool_calls`.

        These are the running calls, and the ended calls that were not refused (`limit_error`).
        """
        calls = (call for each in self.conversations for call in each.tool_calls)
        running = sum(each.num_running_calls for each in self.conversations)
        return running + sum(call.outcome is not Outcome.LIMIT_ERROR for call in calls)

    async def sample(
        self, trajectory: Trajectory, number: int, sampling: SamplingParams, image_starts: Sequence[int]
    ) -> Completion:
        """Sample the turn that follows the tokens of `trajectory`; `number` is its position in `trajectories`."""
        stream = stream_of(self.places[number])
        if not image_starts:  # a custom `generate` may lack the arguments for images
            return await self.generate(trajectory.token_ids, sampling, trajectory=stream)
        return await self.generate(
            trajectory.token_ids,
            sampling,
            trajectory=stream,
            images=[trajectory.images[name] for name in trajectory.media],
            image_starts=list(image_starts),
        )
