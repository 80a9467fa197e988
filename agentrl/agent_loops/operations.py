"""Recording of a conversation's operations. The audit uses the record to check rollouts of any `Conversation`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING

from agentrl.types.operation import Operation, OperationKind

if TYPE_CHECKING:
    from agentrl.agent_loops.context import ConversationContext
    from agentrl.agent_loops.conversation import Conversation

_WORDING = {"opening", "answer_messages", "template_schemas"}
"""Methods of a conversation that write the first messages, write the answers, and select the tools for the template."""


class RecordedOperation:
    """Context manager for one operation of a conversation. Records the operation at the end, also after an exception.

    An operation that changed nothing is not recorded.

    Args:
        then: called at the end, after the recording; also if no operation was recorded.
    """

    __slots__ = ("_before", "_chat", "_kind", "_num_before", "_operations", "_then", "_trajectory")

    def __init__(
        self,
        chat: Conversation,
        trajectory: int,
        kind: OperationKind,
        operations: list[Operation],
        then: Callable[[], None],
    ) -> None:
        self._chat, self._trajectory, self._kind, self._operations = chat, trajectory, kind, operations
        self._then = then

    def __enter__(self) -> None:
        self._num_before, self._before = len(self._operations), _state(self._chat)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        after = _state(self._chat)
        if after != self._before:
            segments, messages, calls, *_ = self._before
            added = segments, after[0] - segments, messages, after[1] - messages, after[2] - calls
            self._operations.append(Operation(self._kind, self._trajectory, self._num_before, *added))
        self._then()


def _state(chat: Conversation) -> tuple[int, int, int, int, bool]:
    trajectory, num_calls, num_rewards = chat.trajectory, len(chat.tool_calls), len(chat.turn_rewards)
    return len(trajectory.segments), len(trajectory.messages), num_calls, num_rewards, chat.stop is None


def opening(
    chat: Conversation,
    trajectory: int,
    context: ConversationContext,
    kind: OperationKind,
    parent: int | None,
    segment: int | None,
) -> Operation:
    """Return the operation that opened `chat`. The opening added all segments and messages so far."""
    num_segments, num_messages, num_calls, *_ = _state(chat)
    num_calls = num_calls if kind is OperationKind.RESUME else 0
    tools, shown = (tuple(schema.name for schema in each) for each in (chat.schemas, chat.template_schemas))
    detail = _detail(_form(type(chat)), context.call_format, tools, shown, parent, segment)
    return Operation(kind, trajectory, len(context.operations), 0, num_segments, 0, num_messages, num_calls, detail)


def _form(kind: type[Conversation]) -> str:
    """Return the `form` of a conversation class; `own` if a subclass overrides one of `_WORDING` but not `form`."""
    for base in kind.__mro__:
        if "form" in vars(base):
            return str(vars(base)["form"])
        if _WORDING & vars(base).keys():
            return "own"
    return "own"


@lru_cache(maxsize=256)
def _detail(
    form: str,
    call_format: str,
    tools: tuple[str, ...],
    template_tools: tuple[str, ...],
    parent: int | None,
    segment: int | None,
) -> str:
    facts = {"form": form, "call_format": call_format, "tools": tools, "template_tools": template_tools}
    places = {"parent": parent, "segment": segment}
    return json.dumps({**facts, **{name: place for name, place in places.items() if place is not None}})


def moved(operation: Operation, number_of: Mapping[int, int]) -> Operation:
    """Return the operation with new trajectory numbers; `number_of` maps old to new numbers."""
    detail = operation.detail
    if detail and "parent" in (facts := json.loads(detail)):
        detail = json.dumps({**facts, "parent": number_of[facts["parent"]]})
    return operation._replace(trajectory=number_of[operation.trajectory], detail=detail)
