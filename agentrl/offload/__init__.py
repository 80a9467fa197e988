"""User code off the event loop: a deadline for each call; what cannot be stopped is left behind and counted.

A coroutine runs on an event-loop thread of its own, a plain function on a daemon thread. A coroutine past its deadline
is cancelled; one that blocks its loop is left there, and a new loop takes over. A plain function cannot be stopped: it
is left behind. What is left behind stays in its `Lane` until it ends, and a lane that holds too much refuses calls.
"""

from agentrl.offload.lane import MAX_ABANDONED, Lane
from agentrl.offload.reply import OverdueError, Reply, UnavailableError
from agentrl.offload.run import GRACE_S, Offload, Running
from agentrl.offload.threads import Work

__all__ = [
    "GRACE_S",
    "MAX_ABANDONED",
    "Lane",
    "Offload",
    "OverdueError",
    "Reply",
    "Running",
    "UnavailableError",
    "Work",
]
