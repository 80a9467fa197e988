"""The agent loop: how one attempt at a task goes, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from agentrl.agent_loops.beginning import Beginning
from agentrl.agent_loops.conversation import Bindings, Conversation
from agentrl.agent_loops.limits import Limits
from agentrl.agent_loops.recording import Recording, model_segment
from agentrl.attempt import Rollout
from agentrl.chat.base import ToolParser
from agentrl.config.run import RunConfig
from agentrl.engines.base import Completion, SamplingParams
from agentrl.messages import Message
from agentrl.registry import Registry
from agentrl.task import Task

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


__all__ = ["AgentLoop", "Conversation", "Generate", "Recording", "agent_loops", "model_segment", "register"]


class Generate(Protocol):
    """Samples one model turn. Bound to one rollout: its session, its deadline, and a seed for each turn."""

    async def __call__(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        trajectory: int = 0,
        images: Sequence[bytes] = (),
        image_starts: Sequence[int] = (),
    ) -> Completion:
        """Sample after the context `token_ids`, [T]. `trajectory` tells apart what a loop samples side by side.

        Args:
            images: those of the context, in order; the tokens of each begin at `image_starts`.
        """
        ...


class AgentLoop:
    """One attempt at a task. Subclass it and write `run`; a new instance is made for every rollout.

        @register("my_agent")
        class MyAgent(AgentLoop):
            async def run(self, task, generate, tools, interaction, sampling):
                chat = self.open(task, generate, tools, interaction, sampling)
                while turn := await chat.model_turn():  # None once a limit was reached: chat.stop says which
                    if not turn.calls:
                        break
                    await chat.tool_turn(turn)
                return chat.rollout()

    A loop may also build its `Rollout` itself, from segments made by `model_segment`; `sampling` arrives
    ready for use (stop tokens, at most `data.max_response_length` tokens). Under `rollout.routed_experts` it hands on
    what a completion says of them: `trajectory.keep_routed_experts(completion.routed_experts)` after that segment.

    Attributes:
        tool_format: the one tool format this loop works with; None takes `rollout.multi_turn.format`.
        roles: the roles it may append after a model turn; the chat template is checked for them at the start.
        uses_tools: whether it ever calls a tool; tools configured for a loop that does not are refused.
        conversation_class: what `open` makes: override its `opening` or `answer_messages` to word things differently.
        beginning: where the task's conversation goes on from, in place of its prompt. A loop that keeps a state of its
            own over turns cannot be continued so.
    """

    tool_format: ClassVar[str | None] = None
    roles: ClassVar[tuple[str, ...]] = ("tool", "user")
    uses_tools: ClassVar[bool] = True
    conversation_class: ClassVar[type[Conversation]] = Conversation

    def __init__(self, chat: ChatFormat, parser: ToolParser, config: RunConfig) -> None:
        """A subclass may take further keyword arguments: the options of its entry in `agent_loop_config_path`."""
        self.chat = chat
        self.parser = parser
        self.config = config
        self.conversations: list[Conversation] = []
        self.beginning: Beginning | None = None

    async def run(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
    ) -> Rollout:
        """Attempt `task` once.

        What it raises ends this rollout alone: `InfraError` as `infra_failed`, an `AgentRLError` ends the run.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run")

    def prompt(self, task: Task, tools: ToolSession | None) -> Conversation:
        """The conversation as `open` begins it, to be looked at: nothing can be sampled in it."""
        return self.open(task, _no_samples, tools if self.uses_tools else None, None, SamplingParams())

    def open(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
        *,
        messages: Sequence[Message] | None = None,
    ) -> Conversation:
        """Begin a conversation: with the task's prompt, or with `messages` (a sub-agent's). Each is one trajectory."""
        limits = Limits.of(self.config, sampling, task.tool_options.max_tool_calls)
        bindings = Bindings(
            *(self.chat, self.parser, limits, generate, tools, interaction, sampling, self.conversations),
            images=dict(task.images),
        )
        conversation = self.conversation_class(bindings, task.messages if messages is None else messages)
        if self.beginning is not None and messages is None:
            conversation.resume_from(self.beginning)
        return conversation


async def _no_samples(token_ids: Sequence[int], sampling: SamplingParams, **options: object) -> Completion:
    raise RuntimeError("a prompt was opened to be looked at, not to be continued")


agent_loops: Registry[Callable[..., AgentLoop]] = Registry(
    "agent loop",
    builtin={
        "single_turn_agent": "agentrl.agent_loops.single_turn:SingleTurnAgent",
        "tool_agent": "agentrl.agent_loops.tool:ToolAgent",
        "react_agent": "agentrl.agent_loops.react:ReactAgent",
    },
    aliases={
        "single_turn": "single_turn_agent",
        "single_turn_agent_loop": "single_turn_agent",
        "verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop": "single_turn_agent",
        "tool": "tool_agent",
        "tool_agent_loop": "tool_agent",
        "verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop": "tool_agent",
        "react": "react_agent",
        "react_agent_loop": "react_agent",
    },
)
"""What builds an agent loop, by name: `(chat, parser, config, **options) -> AgentLoop`, or a class with that as its
`as_agent_loop` (how loops written for another interface bring their adapter)."""

register = agent_loops.register
