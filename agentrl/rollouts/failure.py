"""What is left of a rollout whose loop was cut off or raised."""

from __future__ import annotations

from agentrl.agent_loops.base import AgentLoop
from agentrl.attempt import Rollout, Stop
from agentrl.blame import told
from agentrl.tools.base import InfraError


def salvaged(loop: AgentLoop, stop: Stop) -> Rollout:
    """What the loop's conversations hold; nothing where it keeps its tokens to itself."""
    if not loop.conversations:
        return Rollout([], stop)
    rollout = loop.conversations[0].rollout()
    rollout.stop = stop
    return rollout


def failed_rollout(loop: AgentLoop, error: Exception) -> Rollout:
    """The rollout of a loop that raised `error`."""
    rollout = salvaged(loop, Stop.ERROR)
    rollout.error = told(error)
    rollout.infra_failed = isinstance(error, InfraError)
    return rollout


def innermost(error: Exception) -> Exception:
    """The first error of nested exception groups (a loop's own TaskGroup)."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
