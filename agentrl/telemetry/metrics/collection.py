"""Metrics of collecting groups: staleness, sampling, curriculum, tasks added during a run."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Range, Row

STALENESS = Metric(
    "staleness/mean",
    "versions",
    "mean staleness of the trained groups",
    console=Row("staleness", "{} versions"),
    report=Line("Staleness", "mean"),
)
STALENESS_MAX = Metric("staleness/max", "versions", "largest staleness of a group", report=Line("Staleness", "maximum"))
GROUPS_OF_AGE = Metric("staleness/<age>", "share", "trained groups with this staleness")
TOKENS_OF_AGE = Metric(
    "staleness/tokens_lag_<age>", "share", "sampled tokens with this age in policy versions (valid rollouts only)"
)
IN_FLIGHT = Metric("staleness/in_flight", "groups", "groups still in progress when a step takes its groups")
REQUEUED = Metric(
    "staleness/requeued",
    "groups",
    "groups requeued because they became stale",
    console=Row("staleness", "{} groups requeued"),
)
ENGINE_IDLE = Metric(
    "staleness/engine_idle",
    "share",
    "time in which no rollout was in progress, as a share of the elapsed time",
    report=Line("Asynchronous rollouts", "engine idle"),
)
ENGINE_IDLE_S = Metric("staleness/engine_idle_s", "s", "time in which no rollout was in progress")
REQUEUED_SHARE = Metric(
    "staleness/requeued_share",
    "share",
    "groups requeued, as a share of the groups of the step",
    healthy=Range(highest=0.1),
    report=Line("Asynchronous rollouts", "groups requeued"),
)
PARTIAL = Metric(
    "staleness/partial",
    "share",
    "rollouts sampled by more than one policy version",
    report=Line("Asynchronous rollouts", "rollouts of several versions"),
)
DRAWN = Metric(
    "sampling/drawn",
    "groups",
    "groups sampled for this step",
    console=Row("sampling", "{} groups sampled"),
    report=Line("Groups of a step", "sampled"),
)
FILTERED = Metric(
    "sampling/filtered",
    "groups",
    "groups filtered by `algorithm.filter_groups`",
    console=Row("sampling", "{} of them filtered"),
    report=Line("Groups of a step", "filtered: equal rewards"),
)
ROUNDS = Metric("sampling/rounds", "", "groups sampled, divided by the number of groups of a step")
ALL_CORRECT = Metric("sampling/all_correct", "share", "filtered groups in which every rollout is a success")
ALL_WRONG = Metric("sampling/all_wrong", "share", "filtered groups in which no rollout is a success")
EQUAL = Metric(
    "sampling/equal",
    "share",
    "groups filtered because `algorithm.filter_groups.metric` has the same value for all rollouts, but only some are a"
    " success",
)
TOO_FEW = Metric("sampling/too_few", "share", "groups filtered because fewer than two rollouts are valid")
SAMPLED_REWARD = Metric("sampling/reward_mean", "score", "mean score of all groups sampled, filtered groups included")
MEASURED_ROWS = Metric("curriculum/measured_rows", "rows", "rows whose pass rate is known")
PASS_RATE = Metric("curriculum/pass_rate", "share", "mean pass rate of the rows whose pass rate is known")
DRAWN_SHARE = Metric(
    "curriculum/drawn_share", "share", "rows drawn, as a share of the rows visited; the other visited rows were skipped"
)
WAITING = Metric("online/waiting", "tasks", "tasks that rollouts added and that are not drawn yet")
ADDED = Metric("online/added", "tasks", "tasks added in this step")
DUPLICATES = Metric("online/duplicates", "tasks", "tasks skipped because the queue already has the same task")
BAD = Metric("online/bad", "tasks", "tasks skipped because they are invalid")
REFUSED = Metric("online/refused", "tasks", "tasks refused without reading them, because too many were added at once")
ONLINE_DROPPED = Metric("online/dropped", "tasks", "tasks skipped because the queue is full")
