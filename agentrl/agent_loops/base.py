"""Base class of agent loops. An agent loop runs one rollout of a task, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from agentrl.agent_loops.context import ConversationContext
from agentrl.agent_loops.conversation import Conversation
from agentrl.agent_loops.generate import Generate
from agentrl.agent_loops.limits import Limits
from agentrl.agent_loops.places import Place, path_of_next_agent
from agentrl.agent_loops.recording import Recording, model_segment
from agentrl.agent_loops.resume import ResumePoint
from agentrl.chat.base import ToolParser
from agentrl.config.rollout import COMPACTION, HARNESS, SUB_AGENT
from agentrl.config.run import RunConfig
from agentrl.engines.base import Completion, SamplingParams
from agentrl.registry import Registry
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.operation import Operation, OperationKind
from agentrl.types.rollout import Rollout
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


__all__ = ["AgentLoop", "Conversation", "Generate", "Recording", "agent_loops", "model_segment", "register"]


class SharedByRun(Protocol):
    """An object that all rollouts of a run share."""

    async def close(self) -> None:
        """Release the resources of the object. Called after all rollouts have ended."""
        ...


class AgentLoop:
    """One rollout of a task. Subclass `AgentLoop` and implement `run`; every rollout gets a new instance.

        @register("my_agent")
        class MyAgent(AgentLoop):
            async def run(self, task, generate, tools, interaction, sampling):
                chat = self.open(task, generate, tools, interaction, sampling)
                while turn := await chat.model_turn():  # None if a limit was reached: see chat.stop
                    if not turn.calls:
                        break
                    await chat.tool_turn(turn)
                return chat.rollout()

    A loop may also build its `Rollout` itself, from segments made by `model_segment`. The argument `sampling` of `run`
    already contains the stop tokens and `data.max_response_length`. With `rollout.routed_experts`, a loop that builds
    its `Rollout` must call `trajectory.keep_routed_experts(completion.routed_experts)` after each segment. The audit
    (`agentrl.audit`) cannot check the prompts, tool answers and calls of a rollout that the loop built, because only
    `Conversation` records operations.

    Attributes:
        tool_format: the only tool format that this loop supports; None: `rollout.multi_turn.format`.
        roles: roles of the messages that the loop may append after a model turn. At the start of the run, the chat
            template is checked for these roles.
        uses_tools: whether the loop calls tools. If no loop of the run calls tools, configured tools are rejected.
        runs_task_folders: whether a loop without tools runs tasks from task folders and sets the reward itself.
        uses_task_sandbox: whether a loop without tools works in the sandbox of a task folder. The loop starts
            `task_folder_state(tools.data)` (`agentrl.tools.task_folders`), and the folder's tests give the reward.
        follows_steps: whether the loop asks for the next step of a task folder (`next_step` of
            `agentrl.agent_loops.tool`); otherwise task folders of several steps are refused.
        strips_thinking: whether the loop supports `rollout.multi_turn.thinking=strip`; otherwise the option is refused.
            A loop that builds its `Rollout` itself sets `strips_thinking` to False.
        conversation_class: class of the conversations that `open` makes: `Conversation` or a subclass, which may
            override `opening` and `answer_messages`.
        operations: what the conversations of this rollout did; recorded for the audit (`agentrl.types.operation`).
        places: the `Place` of each trajectory, see `agentrl.agent_loops.places`.
        call_format: name of the tool-call format of `parser`.
        resume_point: saved state from which the rollout continues, instead of the prompt (`agentrl replay RUN
            from-turn`). A loop that keeps its own state over several turns cannot resume.
    """

    tool_format: ClassVar[str | None] = None
    roles: ClassVar[tuple[str, ...]] = ("tool", "user")
    uses_tools: ClassVar[bool] = True
    runs_task_folders: ClassVar[bool] = False
    uses_task_sandbox: ClassVar[bool] = False
    follows_steps: ClassVar[bool] = False
    strips_thinking: ClassVar[bool] = True
    conversation_class: ClassVar[type[Conversation]] = Conversation

    def __init__(self, chat: ChatFormat, parser: ToolParser, config: RunConfig) -> None:
        """A subclass may accept further keyword arguments: the options of its entry in `agent_loop_config_path`."""
        self.chat = chat
        self.parser = parser
        self.config = config
        self.conversations: list[Conversation] = []
        self.trajectories: list[Trajectory] = []
        self.operations: list[Operation] = []
        self.places: list[Place] = []
        self.call_format = ""
        self.resume_point: ResumePoint | None = None

    async def run(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
    ) -> Rollout:
        """Run one rollout of `task`.

        An exception ends this rollout only; an `InfraError` also marks the rollout as `infra_failed`. But an
        `AgentRLError` ends the run.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run")

    def check_template(self, schemas: Sequence[ToolSchema], *, with_users: bool) -> None:
        """Check that the chat template supports messages that `roles` does not cover.

        By default, nothing is checked. Override this method in a loop that appends such messages.

        Args:
            schemas: the tools of the run; empty if the loop calls none.
            with_users: whether the run has simulated users.

        Raises:
            TemplateError: the template does not support a message that this loop appends.
        """

    def prompt(self, task: Task, tools: ToolSession | None) -> Conversation:
        """Open a conversation only to measure the task's prompt; sampling in this conversation raises an error."""
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
        parent: Conversation | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> Conversation:
        """Start a conversation with the task's prompt, or with `messages` (for a sub-agent), as a new trajectory.

        Args:
            parent: the conversation whose last model turn started the sub-agent. In the rollout, the sub-agent's
                trajectories come before the trajectory of `parent`. The sub-agent's sampling seeds do not depend on the
                timing of other conversations.
            limits: limits of this conversation, such as `max_assistant_turns`; they replace the values of
                `rollout.multi_turn`.
        """
        own = Limits.of(self.config, sampling, task.tool_options.max_tool_calls).with_values(limits or {})
        bindings = ConversationContext(
            *(self.chat, self.parser, own, generate, tools, interaction, sampling, self.conversations),
            trajectories=self.trajectories,
            images=dict(task.images),
            operations=self.operations,
            call_format=self.call_format,
            places=self.places,
            path=path_of_next_agent(self.places, parent.last_turn[0]) if parent else (),
        )
        first = task.messages if messages is None else self.chat.history(messages)
        conversation = self.conversation_class(bindings, first)
        kind = OperationKind.TASK if messages is None else OperationKind.MESSAGES
        if self.resume_point is not None and messages is None:
            conversation.resume_from(self.resume_point)
            kind = OperationKind.RESUME
        conversation.record_opening(kind, *(parent.last_turn if parent else ()))
        return conversation


async def _no_samples(token_ids: Sequence[int], sampling: SamplingParams, **options: object) -> Completion:
    raise RuntimeError("this prompt was opened for inspection only; the model cannot continue it")


agent_loops: Registry[Callable[..., AgentLoop]] = Registry(
    "agent loop",
    builtin={
        "single_turn_agent": "agentrl.agent_loops.single_turn:SingleTurnAgent",
        "tool_agent": "agentrl.agent_loops.tool:ToolAgent",
        "react_agent": "agentrl.agent_loops.react:ReactAgent",
        COMPACTION: "agentrl.agent_loops.compaction:CompactionAgent",
        SUB_AGENT: "agentrl.agent_loops.sub_agent:SubAgent",
        HARNESS: "agentrl.harness.loop:HarnessLoop",
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
"""Name -> factory of an agent loop, a function `(chat, parser, config, **options) -> AgentLoop`.

A value may also be a class that adapts loops with another interface: its method `as_agent_loop` is the factory.
"""

register = agent_loops.register
