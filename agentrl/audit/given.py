"""Checks of tool calls that a program executed and answered while it sampled through the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout, AuditedTrajectory, Call
from agentrl.audit.outcomes import label
from agentrl.audit.reading.run_info import Json


def check_given(
    check: Checker,
    rollout: AuditedRollout,
    trajectory: AuditedTrajectory,
    made: Sequence[Call],
    ids: Sequence[Json],
    replies: Sequence[Mapping[str, Json]],
) -> None:
    """Check the outcomes of a turn's calls. These outcomes only show whether a call was well-formed and answered.

    Args:
        ids: the ids of the calls.
        replies: the messages after the turn.
    """
    answered = [reply.get("tool_call_id") for reply in replies if reply["role"] == "tool"]
    for call, call_id in zip(made, ids, strict=False):
        known = ["ok"] if call.name in trajectory.wording.names else []
        expected = [*known, "format_error"] if call_id in answered else ["aborted"]
        if call.outcome not in expected:
            column = f"{label(check, call)}.outcome"
            check.problem("outcomes", rollout.row, column, " or ".join(expected), call.outcome)


def answered_calls(
    made: Sequence[Call], ids: Sequence[Json], replies: Sequence[Mapping[str, Json]]
) -> list[tuple[Call, Json]]:
    """The calls with an answer in the tool messages `replies`, and the calls' ids, in the order of the answers."""
    calls = list(zip(made, ids, strict=False))
    found = (next((each for each in calls if each[1] == reply.get("tool_call_id")), None) for reply in replies)
    return [each for each in found if each is not None]
