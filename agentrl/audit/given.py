"""Checks of calls that a program ran and answered, which sampled through the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout, AuditedTrajectory, Call
from agentrl.audit.outcomes import label
from agentrl.audit.reading.run_info import Json


def check_given(check: Checker, rollout: AuditedRollout, trajectory: AuditedTrajectory, made: Sequence[Call]) -> None:
    """Check the outcomes of a turn's calls: they say only whether a call was answered and well-formed."""
    for call in made:
        known = call.name in trajectory.wording.names
        expected = ("ok", "format_error", "aborted") if known else ("format_error", "aborted")
        if call.outcome not in expected or (call.outcome == "aborted" and call.result):
            column = f"{label(check, call)}.outcome"
            check.problem("outcomes", rollout.row, column, " or ".join(expected), call.outcome)


def answered_calls(
    made: Sequence[Call], ids: Sequence[Json], replies: Sequence[Mapping[str, Json]]
) -> list[tuple[Call, Json]]:
    """The calls that the tool messages `replies` answer, and their ids, in the order of the answers."""
    calls = list(zip(made, ids, strict=False))
    found = (next((each for each in calls if each[1] == reply.get("tool_call_id")), None) for reply in replies)
    return [each for each in found if each is not None]
