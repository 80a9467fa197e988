"""Check a rollout's recorded operations (see `conversation.Operation`).

Together, the operations must have added everything that the rollout contains, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TypeVar

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout, Operation
from agentrl.audit.reading.own_loops import OPENINGS, Opening
from agentrl.audit.reading.run_info import Json, RunInfo
from agentrl.audit.reading.table import Step
from agentrl.audit.tokens.trained import weights

_KINDS = (*OPENINGS, "model_turn", "tool_turn", "user_turn", "say", "given")
_AUTHORS = {**dict.fromkeys(OPENINGS, "prompt"), "model_turn": "model", "tool_turn": "tool"}
_PATH = "operations"

T = TypeVar("T")
Wrong = Iterator[tuple[Operation | None, str, str, object]]
"""Problems: (operation or None if it is missing, name of the operation's field, expected value, found value)."""


def rows(step: Step) -> set[int]:
    """Rows with recorded operations. In files with a schema before 6, no row has operations."""
    return set(step.items[_PATH].row.tolist()) if _PATH in step.items else set()


def check_operations(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    """Check the operations of a rollout of a built-in or custom loop."""
    if _PATH not in check.step.items:  # older schemas
        return
    if rollout.kind is None:
        check.ledger.skip(_PATH, rollout.why)
        return
    check.ledger.count(_PATH, max(1, len(rollout.operations)))
    label = check.step.items[_PATH].label
    for operation, name, expected, found in chain(
        _trajectories(check, rollout, known), _order(rollout), _calls(rollout)
    ):
        column = label(operation.index, name) if operation else f"{_PATH}[0].{name}"
        check.problem(_PATH, rollout.row, column, expected, found)
    if not rollout.by_gateway:
        _check_weights(check, rollout)


def _check_weights(check: Checker, rollout: AuditedRollout) -> None:
    """Check that all weights are 1, because only the gateway sets weights of trajectories."""
    step = check.step
    first, end = step.items["trajectories"].ends[rollout.row : rollout.row + 2].tolist()
    for index, weight in enumerate(weights(step)[first:end].tolist(), first):
        if weight != 1.0:
            column = step.items["trajectories"].label(index, "weight")
            check.problem(_PATH, rollout.row, column, "1: the rollout did not sample through the gateway", weight)


def _trajectories(check: Checker, rollout: AuditedRollout, known: RunInfo) -> Wrong:
    """Check that every trajectory was opened, and that its operations added all its contents."""
    first, end = check.step.items["trajectories"].ends[rollout.row : rollout.row + 2].tolist()
    for operation in rollout.operations:
        if not 0 <= operation.trajectory < end - first:
            yield operation, "trajectory", f"one of {end - first} trajectories", operation.trajectory
    opened = {operation.trajectory for operation in rollout.operations}
    for number in range(end - first):
        if number not in opened:
            yield None, "kind", f"an operation that opened trajectory {number}", "none"
    for trajectory in rollout.trajectories:
        own = [operation for operation in rollout.operations if operation.trajectory == trajectory.number]
        if own:
            authors = _authors(check.step, trajectory.index)
            yield from _gaps(own, authors, trajectory.messages)
            yield from _openings(rollout, own, known)
            yield from _shapes(rollout, own, authors, trajectory.messages)


def _order(rollout: AuditedRollout) -> Wrong:
    """Check that operations of one trajectory do not overlap, and in built-in loops, that no operations overlap."""
    ended: dict[int, int] = {}
    for position, operation in enumerate(rollout.operations):
        lowest = ended.get(operation.trajectory, 0) if rollout.own else position
        if not lowest <= operation.num_before <= position:
            yield operation, "num_before", f"{lowest} to {position} operations before", operation.num_before
        ended[operation.trajectory] = position + 1


def _authors(step: Step, trajectory: int) -> Sequence[str]:
    """The authors of a trajectory's segments."""
    start, end = step.items["trajectories.segments"].ends[trajectory : trajectory + 2].tolist()
    authors: Sequence[str] = step["trajectories.segments.author"][start:end]
    return authors


def _gaps(operations: Sequence[Operation], authors: Sequence[str], messages: Sequence[Json]) -> Wrong:
    """Check that each segment and message of a trajectory was added by an operation, and that none was removed."""
    for what, total in (("segment", len(authors)), ("message", len(messages))):
        at = 0
        for operation in operations:
            first, added = getattr(operation, f"first_{what}"), getattr(operation, f"num_{what}s")
            if first != at:
                why = f"{what} {at} was added by no operation" if first > at else f"{what} {first} was removed"
                yield operation, f"first_{what}", f"{at}: number of earlier {what}s", f"{first}: {why}"
            if added < 0:
                yield operation, f"num_{what}s", "0 or more", added
            at = first + added
        if at != total:
            why = f"{what} {at} was added by no operation" if total > at else f"{what} {total} was removed"
            yield operations[-1], f"num_{what}s", f"{at} {what}s after the last operation", f"{total}: {why}"


def _calls(rollout: AuditedRollout) -> Wrong:
    """Check that each trajectory has as many saved calls as its operations recorded."""
    for number in {operation.trajectory for operation in rollout.operations}:
        own = [operation for operation in rollout.operations if operation.trajectory == number]
        recorded = sum(operation.num_calls for operation in own)
        found = sum(call.trajectory == number for call in rollout.calls)
        if rollout.own and rollout.failed and recorded > found:
            continue  # another conversation failed, and later calls of this conversation were not saved
        if recorded != found or min(operation.num_calls for operation in own) < 0:
            place = next((each for each in own if each.num_calls), own[-1])
            yield place, "num_calls", f"{found} calls in trajectory {number}", recorded


def _shapes(
    rollout: AuditedRollout, operations: Sequence[Operation], authors: Sequence[str], messages: Sequence[Json]
) -> Wrong:
    """Check that each operation added only segments and messages that its kind can add."""
    for operation in operations:
        roles = [message["role"] for message in _slice(messages, operation.first_message, operation.num_messages)]
        added = _slice(authors, operation.first_segment, operation.num_segments)
        if operation.kind not in _KINDS or (operation.kind == "say" and not rollout.own):
            yield operation, "kind", "an operation of this agent loop", operation.kind
        elif operation.kind != "resume" and added not in ([], [_author(operation, roles)]):
            yield operation, "kind", f"an operation that adds a segment of {', '.join(added)}", operation.kind
        elif not _may_add(rollout, operation, roles):
            yield operation, "kind", f"an operation that adds messages of {', '.join(map(str, roles))}", operation.kind


def _author(operation: Operation, roles: Sequence[Json]) -> str:
    if operation.kind == "given":
        return "tool" if "tool" in roles else "user"
    return _AUTHORS.get(operation.kind, "user")


def _slice(items: Sequence[T], first: int, count: int) -> list[T]:
    return list(items[max(0, first) :][: max(0, count)])


def _may_add(rollout: AuditedRollout, operation: Operation, roles: Sequence[Json]) -> bool:
    """Whether an operation may add messages of these roles, given its numbers of segments and calls."""
    has_segment = operation.num_segments > 0
    if operation.kind in OPENINGS:
        return has_segment and (operation.kind == "resume" or not operation.num_calls)
    if operation.kind == "model_turn":  # a turn cut off before its first token has a message without tokens
        return not operation.num_calls and roles in ([], ["assistant"]) and (not has_segment or bool(roles))
    if operation.kind == "tool_turn":
        return has_segment == bool(roles) and (rollout.own or operation.num_calls > 0)
    if operation.kind == "given":
        calls = operation.num_calls >= 0 and (not operation.num_calls or "tool" in roles)
        return rollout.by_gateway and calls and has_segment == bool(roles) and "assistant" not in roles
    return not operation.num_calls and has_segment == bool(roles) and roles in ([], ["user"])


def _openings(rollout: AuditedRollout, operations: Sequence[Operation], known: RunInfo) -> Wrong:
    """Check that a trajectory's first operation, and no other operation, opens the trajectory.

    In built-in loops, also check that model turns and answers alternate.
    """
    first, *others = operations
    if first.kind not in OPENINGS:
        yield first, "kind", "an opening", first.kind
    strips, renders = known.get("rollout.multi_turn.thinking") == "strip", first.kind == "render"
    if renders and not strips:
        yield first, "kind", "no operation `render`: rollout.multi_turn.thinking is not strip", first.kind
    elif not rollout.own and renders != (first.trajectory > 0):
        yield first, "kind", "the task first, then its history rendered again", first.kind
    for operation in others:
        if operation.kind in OPENINGS:
            yield operation, "kind", "a turn: the trajectory was opened before", operation.kind
        if operation.detail:
            yield operation, "detail", "nothing", operation.detail
    opening = Opening.of(first)
    if opening is None:
        yield first, "detail", "how the conversation was opened", first.detail
    elif opening.segment is not None and not _started(rollout, first, opening):
        yield first, "detail", "a model turn of a later trajectory as parent", first.detail
    elif opening.segment is None and opening.parent is not None and opening.parent not in _parents(rollout, first):
        yield first, "detail", "an earlier trajectory as parent (for a branch, any other one)", first.detail
    elif not rollout.own and known.tools is not None and opening != (expected := _built_in(rollout, first, opening)):
        yield first, "detail", f"{expected}", f"{opening}"
    turns = [operation.kind == "model_turn" for operation in others]
    if not rollout.own and (not all(turns[:1]) or any(one == other for one, other in pairwise(turns))):
        yield first, "kind", "alternating model turns and answers", " ".join(each.kind for each in operations)


def _started(rollout: AuditedRollout, first: Operation, opening: Opening) -> bool:
    """Whether a model turn of a later trajectory started the opened trajectory, and ended before the opening."""
    ended = rollout.operations[: max(0, first.num_before)]
    turns = [(each.trajectory, each.first_segment) for each in ended if each.kind == "model_turn"]
    return (opening.parent, opening.segment) in turns and first.trajectory < (opening.parent or 0)


def _parents(rollout: AuditedRollout, first: Operation) -> set[int]:
    """Trajectories that the opened trajectory may continue: earlier ones, or for a branch all other trajectories."""
    if first.kind == "branch":
        return {each.number for each in rollout.trajectories} - {first.trajectory}
    return set(range(first.trajectory))


def _built_in(rollout: AuditedRollout, first: Operation, recorded: Opening) -> Opening:
    """The expected opening in a built-in loop. The format `auto` (only without tools) allows any recorded format."""
    parent = first.trajectory - 1 if first.kind == "render" else None
    names = [str(tool["function"]["name"]) for tool in rollout.options.tools] if rollout.kind != "single" else []
    if rollout.kind == "react":
        return Opening("react", "react", names, [], parent)
    configured = rollout.options.call_format
    return Opening("chat", recorded.call_format if configured == "auto" else configured, names, names, parent)
