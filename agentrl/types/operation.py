"""Operations: calls of a conversation's methods, each with the messages, segments and tool calls that it added."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import NamedTuple


class OperationKind(StrEnum):
    """Which method of a `Conversation` (`agentrl.agent_loops`) was called. The first six kinds open a trajectory."""

    TASK = "task"  # opened with the messages of the task
    MESSAGES = "messages"  # opened with other messages, such as those of a sub-agent
    RESTART = "restart"  # opened with rewritten messages; continues trajectory `parent` (see `Operation.detail`)
    RESUME = "resume"  # opened with the beginning of a saved rollout
    RENDER = "render"  # opened with the messages of trajectory `parent` and the messages after them, all rendered again
    BRANCH = "branch"  # opened with a copy of the beginning of trajectory `parent`, up to a turn of the model
    MODEL_TURN = "model_turn"
    TOOL_TURN = "tool_turn"
    USER_TURN = "user_turn"
    SAY = "say"  # a user message from the agent loop, not from a simulated user
    GIVEN = "given"  # messages that a program using the gateway added


class Operation(NamedTuple):  # created faster than a frozen dataclass
    """One operation, recorded when it ended.

    Attributes:
        trajectory: index of the trajectory in the rollout.
        num_before: number of operations of the rollout that had ended when this operation began.
        first_segment, first_message: number of segments and of messages of the trajectory before the operation.
        num_calls: number of tool calls that the operation recorded.
        detail: a JSON object if the operation opens a trajectory, else empty. Keys: `form` (format of the first
            messages and of tool answers: `chat`, `react`, `gateway`, or `own` for a user's class), `call_format`,
            `tools`, `template_tools` (the tools that the chat template shows), `schemas` (the schemas of the tools,
            only if `form` is `gateway`), `remark` (a note for the viewer), `parent` (the index of the trajectory that
            a restart, a re-rendered history or a branch continues, or that started a sub-agent), `segment` (only for
            a sub-agent: the index of the segment with the turn that started the sub-agent).
    """

    kind: OperationKind
    trajectory: int
    num_before: int
    first_segment: int
    num_segments: int
    first_message: int
    num_messages: int
    num_calls: int
    detail: str = ""

    @property
    def parent(self) -> tuple[int | None, int | None]:
        """`parent` and `segment` in `detail`; None if missing."""
        try:
            facts = json.loads(self.detail or "{}")
        except (ValueError, RecursionError):
            return None, None
        found = (facts.get(name) if isinstance(facts, dict) else None for name in ("parent", "segment"))
        parent, segment = (each if isinstance(each, int) else None for each in found)
        return parent, segment
