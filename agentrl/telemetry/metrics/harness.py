"""Metrics of rollouts that a harness ran."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Metric

RUN_S = Metric("harness/run_s/mean", "s", "mean duration of a harness, from its start to its end")
RUN_S_MAX = Metric("harness/run_s/max", "s", "longest duration of a harness")
WAIT_S = Metric("harness/wait_s/mean", "s", "mean time that a rollout waited for the start of its harness")
REQUESTS = Metric("harness/requests/mean", "", "mean number of requests of a harness")
EXITED = Metric("harness/exit_errors", "share", "harnesses that ended by themselves with an exit code other than 0")
FAILED = Metric(
    "harness/failed",
    "share",
    "dropped rollouts: the harness sent no request, or ended with an error and `on_exit` is `fail`",
)
STOPPED = Metric("harness/stopped", "share", "harnesses that were stopped at a limit or deadline")
