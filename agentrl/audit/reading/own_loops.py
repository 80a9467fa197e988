"""Build trajectories from the operations of conversations, for custom agent loops (other cases: see `Reader`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from agentrl.audit.conversation import Appended, AuditedTrajectory, Call, Operation, Turn, Wording
from agentrl.audit.reading.run_info import Json, RunInfo, tool_name

OPENINGS = ("task", "messages", "restart", "render", "resume", "branch")
"""Operations that open a trajectory."""
FORMS = ("chat", "react", "own", "gateway")

Texts = Mapping[int, tuple[Sequence[int], str | None]]
"""Segment of a model turn -> (tokens, text)."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The parsed `detail` of an operation that opens a trajectory.

    Attributes:
        form: `form` of `Wording`.
        parent: the trajectory that the opened trajectory continues, branches from, or was started by.
        schemas: tool schemas, if the conversation defined its own tools; else None.
        segment: for a sub-agent, position of the model turn that started it, among the segments of `parent`; else None.
    """

    form: str
    call_format: str
    tools: Sequence[str]
    template_tools: Sequence[str]
    parent: int | None
    schemas: Sequence[Json] | None = None
    segment: int | None = None

    @classmethod
    def of(cls, operation: Operation) -> Opening | None:
        """Parse the operation's detail; None if the detail does not have the form that conversations write."""
        try:
            read = json.loads(operation.detail)
            names = read["tools"], read["template_tools"]
            places = read.get("parent"), read.get("schemas"), read.get("segment")
            opening = cls(read["form"], read["call_format"], *names, *places)
            shown = names[1] if opening.schemas is None else [tool_name(schema) for schema in opening.schemas]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        lists = opening.tools, opening.template_tools
        named = all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in lists)
        named = named and shown == opening.template_tools and opening.form in FORMS
        return opening if named and isinstance(opening.call_format, str) and opening.fits(operation.kind) else None

    def fits(self, kind: str) -> bool:
        """Whether a conversation opened by an operation of this `kind` may have this `parent` and `segment`."""
        known = isinstance(self.parent, int), isinstance(self.segment, int)
        if kind in ("restart", "render", "branch"):
            return known == (True, False) and self.segment is None
        return (self.parent, self.segment) == (None, None) or (kind == "messages" and all(known))

    def wording(self, known: RunInfo) -> Wording:
        """Return how the conversation writes tools and answers."""
        schemas = {tool_name(tool): tool for tool in (known.tools or [] if self.schemas is None else self.schemas)}
        saved = [schemas[name] for name in self.template_tools if name in schemas]
        saves_tools = known.tools is not None or self.schemas is not None
        complete = saves_tools and len(saved) == len(self.template_tools)
        shown = saved if complete else None
        tools = [schemas[name] for name in self.tools if name in schemas]
        call_format = self.call_format if self.tools else None
        return Wording(self.form, call_format, frozenset(self.tools), shown, tools, self.call_format)


def operations_fit(operations: Sequence[Operation], num_segments: int, num_messages: int) -> bool:
    """Whether the operations of a trajectory cover all its segments and messages, without gaps."""
    segment = message = 0
    for operation in operations:
        added = operation.num_segments, operation.num_messages
        if (operation.first_segment, operation.first_message) != (segment, message) or min(added) < 0:
            return False
        segment, message = segment + operation.num_segments, message + operation.num_messages
    return (segment, message) == (num_segments, num_messages)


def num_beside(operations: Sequence[Operation], used: Sequence[int], position: int) -> int:
    """Number of calls in operations that overlap the operation at `position`.

    These calls may have begun before the operation at `position`.

    Args:
        used: result of `num_used`.
    """
    begun = operations[position].num_before
    others = range(max(0, begun), len(operations))
    beside = (each for each in others if each != position and operations[each].num_before <= begun)
    return sum(used[each + 1] - used[each] for each in beside)


def num_used(operations: Sequence[Operation], calls: Sequence[Call]) -> list[int]:
    """[operations + 1]: for each operation, the number of earlier calls that count towards the call limit."""
    left: dict[int, list[Call]] = {}
    for call in calls:
        left.setdefault(call.trajectory, []).append(call)
    counts = []
    for operation in operations:
        own = left.get(operation.trajectory, [])
        taken, left[operation.trajectory] = own[: operation.num_calls], own[operation.num_calls :]
        counts.append(sum(call.outcome != "limit_error" for call in taken))
    return [0, *accumulate(counts)]


@dataclass(frozen=True, slots=True)
class OwnTrajectories:
    """Builds the trajectories of one rollout, in order.

    Attributes:
        used: result of `num_used`.
        failed: whether the loop raised an error; other conversations may have continued after the error.
        closed: whether the tokens of a turn end with the end token.
    """

    known: RunInfo
    texts: Texts
    closed: Callable[[Sequence[int]], bool]
    operations: Sequence[Operation]
    used: Sequence[int]
    calls: Sequence[Call]
    failed: bool

    def build(
        self,
        index: int,
        number: int,
        messages: Sequence[Mapping[str, Json]],
        segments: range,
        earlier: Sequence[AuditedTrajectory],
    ) -> AuditedTrajectory:
        """Return trajectory `number`.

        If its opening cannot be read, or its operations do not cover its messages and segments, `fits` is false, and
        nothing else of the trajectory is checked.
        """
        operations = [operation for operation in self.operations if operation.trajectory == number]
        opening = Opening.of(operations[0]) if operations and operations[0].kind in OPENINGS else None
        prompt = segments[0] if segments else -1
        recorded, saved = sum(each.num_calls for each in operations), sum(c.trajectory == number for c in self.calls)
        fits = operations_fit(operations, len(segments), len(messages)) and not (self.failed and recorded > saved)
        if opening is None or not fits:
            nothing = Wording("own", None, frozenset(), None)
            return AuditedTrajectory(index, number, messages, len(messages), prompt, [], False, nothing)
        turns, appended = self._turns(operations[1:], messages, segments)
        continues = operations[0].kind != "messages"
        parent = next((one for one in earlier if one.number == opening.parent and continues), None)
        rendered, branches = operations[0].kind == "render", operations[0].kind == "branch"
        return AuditedTrajectory(
            *(index, number, messages, operations[0].num_messages, prompt, turns, True, opening.wording(self.known)),
            first_turn=parent.first_turn + len(parent.turns) if parent and not branches else 0,
            parent=opening.parent if continues else None,
            rendered=rendered,
            branches=branches,
            first_prompt=(parent.prompt if parent.first_prompt < 0 else parent.first_prompt)
            if parent and rendered
            else -1,
            opened_with_task=operations[0].kind == "task",
            appended=appended,
            of_agent=parent.of_agent if parent else opening.segment is not None,
        )

    def _turns(
        self, operations: Sequence[Operation], messages: Sequence[Mapping[str, Json]], segments: range
    ) -> tuple[list[Turn], list[Appended]]:
        turns, appended = list[Turn](), list[Appended]()
        starts = [i for i, each in enumerate(operations) if each.kind == "model_turn" and each.num_messages]
        # not strict: without turns, there is one end but no start
        for start, end in zip(starts, [*starts[1:], len(operations)], strict=False):
            turns.append(self._turn(operations[start], operations[start + 1 : end], messages, segments))
        turn = -1
        for position, each in enumerate(operations):
            turn += position in starts
            if position not in starts and each.num_segments:
                appended.append(Appended(turn, segments[each.first_segment], _added(each, messages)))
        return turns, appended

    def _turn(
        self,
        operation: Operation,
        followers: Sequence[Operation],
        messages: Sequence[Mapping[str, Json]],
        segments: range,
    ) -> Turn:
        segment = segments[operation.first_segment] if operation.num_segments else -1
        ids, text = self.texts.get(segment, ([], ""))
        tools = [each for each in followers if each.kind == "tool_turn" or each.num_calls]
        reply = next(iter([*tools, *(each for each in followers if each.num_messages)]), None)
        position = operation.first_message
        return Turn(
            *(segment, ids, text, self.closed(ids), position, messages[position]),
            replies=_added(reply, messages) if reply else [],
            reply=segments[reply.first_segment] if reply and reply.num_segments else -1,
            ran=bool(tools),
            num_used=self.used[max(0, min(tools[0].num_before, len(self.operations)))] if tools else 0,
            num_beside=num_beside(self.operations, self.used, self.operations.index(tools[0])) if tools else 0,
        )


def _added(operation: Operation, messages: Sequence[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    return list(messages[operation.first_message : operation.first_message + operation.num_messages])
