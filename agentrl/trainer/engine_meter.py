"""What the engine did in each step, from counters that it keeps since the start of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl.engines.base import COUNTERS
from agentrl.trainer.parts import Metrics

COUNTED = (
    *COUNTERS,
    "evicted_sessions",
    "later_prompt_tokens",
    "later_cached_tokens",
    "num_retried",
    "num_restarts",
)
"""What engines count up; how many requests wait, or how much KV is held, belongs to a moment and not to a step."""

_SHARES = (
    ("cached_share", "cached_tokens", "prompt_tokens"),
    ("later_cached_share", "later_cached_tokens", "later_prompt_tokens"),
)


class EngineMeter:
    """The counts of one step, as `engine/<name>`.

    `engine/cached_share` is how much of the context was in the cache already, `engine/later_cached_share` likewise of
    what a conversation's later turns say again. `engine/replicas_ready` is how many servers are in service at its end.

    Args:
        counters: `Engine.metrics`.
    """

    def __init__(self, counters: Callable[[], Mapping[str, float]]) -> None:
        self._counters = counters
        self._before = counters()

    def __call__(self) -> Metrics:
        """What was counted since the last call."""
        before, now = self._before, self._counters()
        self._before = now
        counts = {name: now[name] - before.get(name, 0.0) for name in COUNTED if name in now}
        shares = {
            share: counts[part] / counts[whole]
            for share, part, whole in _SHARES
            if counts.get(whole) and part in counts
        }
        ready = {name: now[name] for name in ("replicas_ready",) if name in now}
        return {f"engine/{name}": value for name, value in {**counts, **shares, **ready}.items()}
