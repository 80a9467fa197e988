"""Classifies the end of a harness: a failure of the model, of the harness or of the infrastructure."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError
from agentrl.harness.process import MAX_OUTPUT_BYTES, Ended
from agentrl.sandboxes.base import shortened
from agentrl.tools.base import InfraError
from agentrl.types.rollout import Rollout, Stop

if TYPE_CHECKING:
    from agentrl.gateway.session import Session
    from agentrl.harness.run import HarnessRun
    from agentrl.harness.slots import WatchedSession

_LOGGER = logging.getLogger(__name__)
_TAIL = 1000
"""Number of characters of the output that an error shows."""


@dataclass(slots=True)
class Finished:
    """How a harness finished. A harness runs once for each step of a task.

    Attributes:
        by_itself: whether the harness ended without being stopped.
        limited: whether the session had ended because a limit was reached or sampling failed.
        score: the number that a function returned.
        problem: the problem at the end of the harness; "" if there is none.
        num_runs: number of runs of the harness.
        duration_s: seconds for which the harness ran.
        wait_s: seconds for which the rollout waited for a slot.
    """

    ended: Ended
    by_itself: bool
    limited: bool
    score: float | None = None
    problem: str = ""
    num_runs: int = 1
    duration_s: float = 0.0
    wait_s: float = 0.0


def stopped(output: str = "") -> Finished:
    """Return the result of a harness that was stopped."""
    return Finished(Ended(None, output), by_itself=False, limited=False)


def joined(before: Finished, last: Finished) -> Finished:
    """Return the joint result of two consecutive runs of a harness.

    The exit code is that of the first run with a problem. If no run had a problem, it is that of the last run.
    """
    output = shortened(before.ended.output + last.ended.output, MAX_OUTPUT_BYTES)
    code = before.ended.exit_code if before.problem else last.ended.exit_code
    return replace(
        last,
        ended=replace(last.ended, exit_code=code, output=output),
        score=before.score if last.score is None else last.score,
        problem=before.problem or last.problem,
        num_runs=before.num_runs + 1,
    )


def rollout_of(shared: HarnessRun, session: Session, watched: WatchedSession, finished: Finished) -> Rollout:
    """Return the rollout that the session recorded, with facts about the harness.

    Raises:
        ConfigError: the command does not exist.
        InfraError: the harness could not be started.
        Exception: the engine failed.
    """
    if session.failure is not None:
        raise session.failure
    if finished.num_runs == 1 and not session.num_turns:
        _check_started(shared, finished)
    problem = finished.problem
    rollout = session.rollout(_stop(finished, problem, shared.settings.on_exit, session.num_turns))
    if problem:
        problem = f"the harness {problem}{_tail(finished.ended.output)}"
        shared.log_once(problem)
    if rollout.stop is Stop.ERROR:
        rollout.error = problem
    if finished.score is not None and rollout.stop is not Stop.ERROR:
        rollout.rewards["score"] = finished.score
    rollout.facts = {
        "harness_exit_code": finished.ended.exit_code,
        "harness_output": finished.ended.output,
        "harness_duration_s": finished.duration_s,
        "harness_wait_s": finished.wait_s,
        "harness_requests": watched.num_requests,
    }
    return rollout


def _check_started(shared: HarnessRun, finished: Finished) -> None:
    ended = finished.ended
    if ended.missing:
        command = shared.settings.command[0]
        raise ConfigError.keyless(f"harness '{shared.harness.name}': cannot run '{command}': {ended.failed}")
    if ended.failed:
        raise InfraError(f"the harness did not start: {ended.failed}")


def problem_of(session: Session, watched: WatchedSession, finished: Finished, num_turns: int) -> str:
    """Return the problem at the end of a harness; "" if there is none, or if a limit of the rollout explains it.

    Args:
        num_turns: number of turns since this run of the harness started.
    """
    code = finished.ended.exit_code
    if finished.ended.failed:
        return f"did not start: {finished.ended.failed}"
    if not num_turns and (finished.by_itself or watched.refused):
        return f"got no turn{_because(watched.refused)}: {_ending(code)}"
    if not finished.by_itself or finished.limited or session.stop is not None:
        return ""
    return _ending(code) if code != 0 else ""


def _ending(code: int | None) -> str:
    return "ended without a report" if code is None else f"ended with exit code {code}"


def _because(refused: str) -> str:
    return f" ({refused})" if refused else ""


def _stop(finished: Finished, problem: str, on_exit: str, num_turns: int) -> Stop | None:
    """Return the stop reason; None: the session's reason applies."""
    if problem and (not num_turns or on_exit == "fail"):
        return Stop.ERROR
    return None if finished.limited or finished.by_itself else Stop.DEADLINE


def _tail(output: str) -> str:
    """Return the end of an output as one line."""
    text = " ".join(output[-_TAIL:].split())
    return f": {text}" if text else ""
