"""Converts a session's lines (paths of turns) to the trajectories, operations and tool calls of one rollout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

from agentrl.gateway.lines import Line
from agentrl.gateway.turns import Turn
from agentrl.types.messages import Message, ToolSchema, message_text
from agentrl.types.operation import Operation, OperationKind
from agentrl.types.rollout import Outcome, Rollout, Stop, ToolCall
from agentrl.types.trajectory import Author, Segment, Trajectory

FORM = "gateway"
"""Value of `form` in the operation that opens a trajectory. It tells the audit that the client wrote the messages."""


def laid_out(lines: Sequence[Line], call_format: str, images: Mapping[str, bytes]) -> Rollout:
    """Return a rollout with one trajectory for each line.

    The prompt of a line that branches off is a copy of all tokens before the line. So every sampled token is in a model
    segment of exactly one trajectory.

    Args:
        call_format: name of the tool-call format, for the audit.
        images: name -> bytes of the images in the messages.
    """
    rollout, numbers = Rollout([], Stop.FINISHED), _numbers(lines)
    for number, line in enumerate(lines):
        parent = None if line.start is None else numbers[line.start]
        builder = _Builder(rollout.operations, number)
        builder.open(line, call_format, parent)
        for before, turn in zip([None, *line.turns], line.turns, strict=False):
            answered = _calls(before, turn, number, builder.num_turns - 1) if before else []
            rollout.tool_calls += answered
            if before or parent is not None:
                builder.given(turn, len(answered))
            builder.model(turn)
        if line.turns[-1].refused:
            builder.record(OperationKind.GIVEN)
        builder.keep_experts(line)
        names = builder.trajectory.media
        builder.trajectory.images.update({name: images[name] for name in names})
        rollout.trajectories.append(builder.trajectory)
    return rollout


def _numbers(lines: Sequence[Line]) -> dict[Turn, int]:
    return {turn: number for number, line in enumerate(lines) for turn in line.turns}


class _Builder:
    """Builds one trajectory and records its operations."""

    def __init__(self, operations: list[Operation], number: int) -> None:
        self.trajectory, self.num_turns = Trajectory(), 0
        self._operations, self._number = operations, number

    def open(self, line: Line, call_format: str, parent: int | None) -> None:
        """Add the prompt of the conversation, or, for a branch, a copy of everything before the line."""
        first = line.turns[0]
        if line.start is None:
            prompt, messages, images = first.token_ids, first.messages, first.images
        else:
            path = line.start.path
            prompt, messages = list(chain.from_iterable(turn.own_ids for turn in path)), line.start.history
            images = [name for turn in path for name in turn.images]
        kind = OperationKind.MESSAGES if parent is None else OperationKind.BRANCH
        segment = Segment(Author.PROMPT, prompt, media=tuple(images))
        self.record(kind, [segment], messages, detail=_detail(first.schemas, call_format, parent))

    def given(self, turn: Turn, num_calls: int) -> None:
        """Add the messages that the client sent between the previous turn and this turn."""
        author = Author.TOOL if any(message["role"] == "tool" for message in turn.messages) else Author.USER
        segment = Segment(author, turn.token_ids, media=tuple(turn.images))
        self.record(OperationKind.GIVEN, [segment], turn.messages, num_calls)

    def model(self, turn: Turn) -> None:
        """Add the turn that the model sampled."""
        assert turn.message is not None  # lines consist of finished turns
        self.record(OperationKind.MODEL_TURN, [turn.segment] if turn.segment else [], [turn.message])
        self.num_turns += 1

    def record(
        self,
        kind: OperationKind,
        segments: Sequence[Segment] = (),
        messages: Sequence[Message] = (),
        num_calls: int = 0,
        detail: str = "",
    ) -> None:
        """Append segments and messages, and record the operation."""
        trajectory, before = self.trajectory, len(self._operations)
        first = len(trajectory.segments), len(trajectory.messages)
        for segment in segments:
            trajectory.append(segment)
        trajectory.messages.extend(messages)
        added = len(trajectory.segments) - first[0], len(messages)
        self._operations.append(
            Operation(kind, self._number, before, first[0], added[0], first[1], added[1], num_calls, detail)
        )

    def keep_experts(self, line: Line) -> None:
        """Add the routed experts of the line's turns, and of all turns before them, to the trajectory."""
        kept = [turn.experts for turn in line.turns[-1].path if turn.experts is not None]
        if kept:
            import torch

            self.trajectory.keep_routed_experts(torch.cat(kept))


def _calls(turn: Turn, following: Turn, trajectory: int, number: int) -> list[ToolCall]:
    """Return the calls of a turn, with results from the tool messages before the following turn.

    Return no calls if there are no tool messages. `num_tokens` of the first call counts the tokens of all results.
    """
    results = {
        each.get("tool_call_id", ""): message_text(each) for each in following.messages if each["role"] == "tool"
    }
    if not results or turn.message is None:
        return []
    names = {schema.name for schema in turn.schemas}
    ids = [call.get("id", "") for call in turn.message.get("tool_calls", ())]
    return [
        ToolCall(
            call.name,
            call.arguments,
            results.get(call_id, ""),
            _outcome(call_id in results, call.error is None and call.name in names),
            num_tokens=0 if position else len(following.token_ids),
            turn=number,
            trajectory=trajectory,
        )
        for position, (call, call_id) in enumerate(zip(turn.parsed.calls, ids, strict=True))
    ]


def _outcome(answered: bool, well_formed: bool) -> Outcome:
    if not answered:
        return Outcome.ABORTED
    return Outcome.OK if well_formed else Outcome.FORMAT_ERROR


def _detail(schemas: Sequence[ToolSchema], call_format: str, parent: int | None) -> str:
    return _written(tuple(schema.model_dump_json() for schema in schemas), call_format, parent)


@lru_cache(maxsize=64)
def _written(schemas: tuple[str, ...], call_format: str, parent: int | None) -> str:
    read = [json.loads(schema) for schema in schemas]
    names = [schema["function"]["name"] for schema in read]
    facts = {"form": FORM, "call_format": call_format, "tools": names, "template_tools": names, "schemas": read}
    return json.dumps(facts if parent is None else {**facts, "parent": parent})
