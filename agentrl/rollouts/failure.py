"""What is left of a rollout whose loop was cut off or raised."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

from agentrl.agent_loops.base import AgentLoop
from agentrl.tools.base import InfraError
from agentrl.trajectory import Rollout, Stop

_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *_LIBRARIES))


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
    rollout.error = error_line(error)
    rollout.infra_failed = isinstance(error, InfraError)
    return rollout


def innermost(error: Exception) -> Exception:
    """The first error of nested exception groups (a loop's own TaskGroup)."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def error_line(error: Exception) -> str:
    """`Type: message (file:line)`, the place in the user's code where there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if not frames:
        return text
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    place = (theirs or frames)[-1]
    return f"{text} ({place.filename}:{place.lineno})"
