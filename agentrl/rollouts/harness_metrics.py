"""Metrics of rollouts that a harness ran, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import cast

from agentrl.types.rollout import Rollout, Stop


def harness_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the metrics `harness/...` of all rollouts that a harness ran, including failed rollouts.

    The result is empty if a harness ran none of the rollouts.
    """
    ran = [rollout for rollout in rollouts if "harness_requests" in rollout.facts]
    if not ran:
        return {}
    durations = _numbers(ran, "harness_duration_s")
    codes = [rollout.facts["harness_exit_code"] for rollout in ran]
    return {
        "harness/run_s/mean": fmean(durations),
        "harness/run_s/max": max(durations),
        "harness/wait_s/mean": fmean(_numbers(ran, "harness_wait_s")),
        "harness/requests/mean": fmean(_numbers(ran, "harness_requests")),
        "harness/exit_errors": sum(code not in (0, None) for code in codes) / len(ran),
        "harness/failed": sum(rollout.stop is Stop.ERROR for rollout in ran) / len(ran),
        "harness/stopped": sum(code is None for code in codes) / len(ran),
    }


def _numbers(rollouts: Sequence[Rollout], name: str) -> list[float]:
    return [float(cast(float, rollout.facts[name])) for rollout in rollouts]
