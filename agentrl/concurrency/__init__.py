"""Runs user code off the event loop, with a deadline for each call.

A coroutine runs on a separate event-loop thread, a plain function on a daemon thread. A coroutine past its deadline
is cancelled. If the coroutine blocks its event loop, a new event loop replaces the blocked one. A plain function cannot
be stopped, so its thread is abandoned. A `CircuitBreaker` counts abandoned calls until they end. If too many abandoned
calls still run, the `CircuitBreaker` refuses new calls.
"""

from agentrl.concurrency.circuit_breaker import MAX_ABANDONED, CircuitBreaker
from agentrl.concurrency.mailbox import OverdueError, Reply, UnavailableError
from agentrl.concurrency.run import GRACE_S, Offload, Running
from agentrl.concurrency.threads import Work

__all__ = [
    "GRACE_S",
    "MAX_ABANDONED",
    "CircuitBreaker",
    "Offload",
    "OverdueError",
    "Reply",
    "Running",
    "UnavailableError",
    "Work",
]
