"""Metrics of the engine and the tools in each step, computed from counters since the start of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl.engines.base import COUNTERS
from agentrl.trainer.protocols import Metrics

COUNTED = (
    *COUNTERS,
    "evicted_sessions",
    "later_prompt_tokens",
    "later_cached_tokens",
    "num_retried",
    "num_restarts",
    "weight_sent_bytes",
    "weight_compare_s",
)
"""Engine counters to report."""

_LAST = ("replicas_ready", "weight_changed_share")
"""Engine gauges to report, with their value at the end of the step. Other gauges, such as the number of waiting
requests, are not reported, because a momentary value does not describe a step."""

_OF_THE_RUN = ("abandoned_calls", "sandbox_cost_usd")
"""Tool values that are reported unchanged, not as the increase in the step: the calls that still hang, and the price
of all sandboxes since the start of the run, including validations."""

_SHARES = (
    ("cached_share", "cached_tokens", "prompt_tokens"),
    ("later_cached_share", "later_cached_tokens", "later_prompt_tokens"),
)


class Meter:
    """Reads counters once per step.

    Args:
        counters: returns the counts since the start of the run.
    """

    def __init__(self, counters: Callable[[], Mapping[str, float]]) -> None:
        self._counters = counters
        self._before = counters()

    def _read(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return the counters at the previous call, and the current counters."""
        before, self._before = self._before, self._counters()
        return before, self._before


class EngineMeter(Meter):
    """Counts of one step, as `engine/<name>`.

    `engine/cached_share` is the share of prompt tokens found in the cache. `engine/later_cached_share` is the same
    share, but only of prompt tokens that the previous turn of the conversation contained or sampled.
    `engine/replicas_ready` is the number of servers in service at the end of the step. `engine/weight_changed_share` is
    the share of weights that changed since the previous transfer of weights. The counts come from `Engine.metrics`.
    """

    def __call__(self) -> Metrics:
        """Return the counts since the last call."""
        before, now = self._read()
        counts = {name: now[name] - before.get(name, 0.0) for name in COUNTED if name in now}
        shares = {
            share: counts[part] / counts[whole]
            for share, part, whole in _SHARES
            if counts.get(whole) and part in counts
        }
        last = {name: now[name] for name in _LAST if name in now}
        return {f"engine/{name}": value for name, value in {**counts, **shares, **last}.items()}


class ToolMeter(Meter):
    """Counts of the tools in one step, as `tools/<name>`. The counts come from `Toolbox.metrics`.

    The values in `_OF_THE_RUN` are not counts of one step: they are reported as `Toolbox.metrics` returns them.
    """

    def __call__(self) -> Metrics:
        """Return the counts since the last call."""
        before, now = self._read()
        return {
            f"tools/{name}": value - (0.0 if name in _OF_THE_RUN else before.get(name, 0.0))
            for name, value in now.items()
        }
