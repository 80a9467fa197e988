"""Metrics of collecting groups: staleness, sampling, curriculum, tasks added during a run."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Range, Row

STALENESS = Metric(
    "staleness/mean",
    "versions",
    "mean age of the groups trained on",
    console=Row("staleness", "{} versions"),
    report=Line("Staleness", "mean"),
)
STALENESS_MAX = Metric("staleness/max", "versions", "age of the oldest group", report=Line("Staleness", "maximum"))
GROUPS_OF_AGE = Metric("staleness/<age>", "share", "groups of this age, of the groups trained on")
TOKENS_OF_AGE = Metric(
    "staleness/tokens_lag_<age>", "share", "sampled tokens of valid rollouts whose weights have this age"
)
IN_FLIGHT = Metric("staleness/in_flight", "rollouts", "rollouts under way at the end of the step")
REQUEUED = Metric(
    "staleness/requeued",
    "groups",
    "groups started again because they grew too old",
    console=Row("staleness", "{} groups requeued"),
)
ENGINE_IDLE = Metric(
    "staleness/engine_idle",
    "share",
    "share of the time in which no rollout was under way",
    report=Line("Asynchronous rollouts", "engine idle"),
)
ENGINE_IDLE_S = Metric("staleness/engine_idle_s", "s", "time in which no rollout was under way")
REQUEUED_SHARE = Metric(
    "staleness/requeued_share",
    "share",
    "groups started again, as a share of the groups of the step",
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
    "groups rolled out for this step",
    console=Row("sampling", "{} groups sampled"),
    report=Line("Groups of a step", "sampled"),
)
FILTERED = Metric(
    "sampling/filtered",
    "groups",
    "groups left out by `algorithm.filter_groups`",
    console=Row("sampling", "{} of them filtered"),
    report=Line("Groups of a step", "filtered: equal rewards"),
)
ROUNDS = Metric("sampling/rounds", "", "groups rolled out, as a multiple of the step's size")
ALL_CORRECT = Metric("sampling/all_correct", "share", "groups left out because every rollout is a success")
ALL_WRONG = Metric("sampling/all_wrong", "share", "groups left out because no rollout is a success")
EQUAL = Metric("sampling/equal", "share", "groups left out because their values are equal")
TOO_FEW = Metric("sampling/too_few", "share", "groups left out because fewer than two rollouts are valid")
SAMPLED_REWARD = Metric("sampling/reward_mean", "score", "mean score of all groups, filtered groups included")
MEASURED_ROWS = Metric("curriculum/measured_rows", "rows", "rows whose pass rate is known")
PASS_RATE = Metric("curriculum/pass_rate", "share", "mean pass rate of the rows whose pass rate is known")
DRAWN_SHARE = Metric("curriculum/drawn_share", "share", "tasks drawn, as a share of the tasks whose turn it was")
WAITING = Metric("online/waiting", "tasks", "tasks added by rollouts that wait to be drawn")
ADDED = Metric("online/added", "tasks", "tasks added in this step")
DUPLICATES = Metric("online/duplicates", "tasks", "tasks skipped because the same task already waits")
BAD = Metric("online/bad", "tasks", "tasks skipped because they cannot be read")
REFUSED = Metric("online/refused", "tasks", "tasks refused before they were read, because too many were added at once")
ONLINE_DROPPED = Metric("online/dropped", "tasks", "tasks skipped because too many wait")
