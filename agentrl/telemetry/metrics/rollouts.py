"""Metrics of rollouts: length, turns, tool calls, and how rollouts ended."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Range, Row
from agentrl.types.excluded import Excluded

RESPONSE_LENGTH = Metric(
    "response_length/mean",
    "tokens",
    "mean number of tokens after the prompt, per rollout (sum over its trajectories)",
    console=Row("response", "{} tokens"),
    report=Line("Response length", "training"),
    viewer=5,
)
RESPONSE_LENGTH_MAX = Metric("response_length/max", "tokens", "tokens after the prompt in the longest rollout")
NUM_TURNS = Metric(
    "num_turns/mean",
    "turns",
    "mean number of model turns per rollout",
    console=Row("response", "{} turns"),
    report=Line("Turns", "training"),
)
NUM_TURNS_MAX = Metric("num_turns/max", "turns", "largest number of model turns of a rollout")
ROLLOUT_S = Metric("rollout_s/mean", "s", "mean duration of a rollout, scoring included")
ROLLOUT_S_MAX = Metric("rollout_s/max", "s", "longest duration of a rollout")
FAILED = Metric("rollouts/failed", "share", "rollouts whose agent loop raised an error", healthy=Range(highest=0.1))
INFRA_FAILED = Metric(
    "rollouts/infra_failed", "share", "rollouts that failed for reasons outside the policy", healthy=Range(highest=0.2)
)
DROPPED = Metric(
    "rollouts/dropped",
    "share",
    "failed and infra_failed rollouts together; most other rollout metrics exclude them",
    report=Line("Dropped rollouts", "training"),
)
NUM_DROPPED = Metric("rollouts/num_dropped", "rollouts", "number of dropped rollouts")
CALLS_SHIFT = Metric(
    "left_out/calls_shift",
    "share",
    "estimated relative increase of the mean number of tool calls if no tool had failed for reasons outside the "
    "policy; missing if no tool failed in this way",
    healthy=Range(highest=0.05),
)
SCORE_SHIFT = Metric(
    "left_out/score_shift",
    "score",
    "estimated mean score if no tool had failed for reasons outside the policy, minus the mean score",
)
EXCLUDED_FOR = Metric(
    "rollout/excluded/<reason>",
    "rollouts",
    f"number of rollouts that are not trained on for this reason: {', '.join(f'`{reason}`' for reason in Excluded)}",
)
COMPACTIONS = Metric("compaction/mean", "", "mean number of summaries that replaced a conversation, per rollout")
COMPACTION_BEFORE = Metric(
    "compaction/tokens_before", "tokens", "mean length of the conversations that a summary replaced, prompt included"
)
COMPACTION_AFTER = Metric(
    "compaction/tokens_after", "tokens", "mean length of the new prompts, which contain the summary"
)
SUB_AGENTS = Metric("sub_agents/mean", "", "mean number of sub-agents per rollout")
SUB_AGENTS_LENGTH = Metric("sub_agents/response_length", "tokens", "mean number of tokens after a sub-agent's prompt")
STOP = Metric("stop/<reason>", "share", "rollouts that ended for this reason (see Stop reasons in the reference)")
TOOL_CALLS = Metric("tool_calls/mean", "calls", "mean number of tool calls per rollout", viewer=6)
TOOL_CALLS_SHARE = Metric("tool_calls/share", "share", "rollouts with at least one call whose outcome is `ok`")
CALLS_OF_TOOL = Metric(
    "tool/<tool>/calls", "calls", "calls of this tool; `unknown` counts calls of tools that do not exist"
)
TOOL_OUTCOME = Metric(
    "tool/<tool>/<outcome>",
    "calls",
    "calls of this tool with this outcome (see Outcomes of tool calls in the reference)",
)
RECOVERED = Metric(
    "tool/<tool>/recovered",
    "share",
    "rollouts with an `ok` call of this tool in a turn after its first `tool_error`, as a share of the rollouts with a"
    " `tool_error` of this tool",
)
SUCCESS_AFTER_ERROR = Metric(
    "tool/<tool>/success_after_error", "share", "successes among the rollouts with a `tool_error` of this tool"
)
TOOL_P50 = Metric("tool/<tool>/p50_s", "s", "median duration of a call of this tool")
TOOL_P95 = Metric("tool/<tool>/p95_s", "s", "95th percentile of the duration of a call of this tool")
TOOL_TOKENS = Metric("tool/<tool>/tokens_per_call", "tokens", "mean length of an answer of this tool")
