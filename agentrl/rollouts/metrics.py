"""Metrics of a step's rollouts, as pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean, pstdev

from agentrl.rollouts.context_metrics import context_metrics
from agentrl.rollouts.failure_metrics import left_out_metrics, recovery_metrics
from agentrl.rollouts.harness_metrics import harness_metrics
from agentrl.telemetry.timing import percentile
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall


def rollout_metrics(groups: Sequence[Group], success_threshold: float = 1.0) -> dict[str, float]:
    """Return metrics by name. Failed rollouts count only in `rollouts/`, `success_all`, `left_out/` and `harness/`.

    - `reward/mean`, `reward/std`, `reward/<name>` (reward parts), `success`, `success/<data_source>`: only if a rollout
      has a score
    - `response_length/mean`, `/max`: tokens after the prompts of a rollout's trajectories; `num_turns/mean`, `/max`
    - `rollout_s/mean`, `/max`: duration in seconds
    - `tool_calls/mean`; `tool_calls/share`: share of rollouts with at least one call with outcome `ok`
    - `compaction/...`, `sub_agents/...`: see `context_metrics`
    - `tool/<name>/calls`, `tool/<name>/<outcome>`: counts; `/p50_s`, `/p95_s`: duration; `/tokens_per_call`
    - `stop/<reason>`, `rollouts/failed` (stop reason `error`), `rollouts/infra_failed`, `rollouts/dropped` (failed or
      infra_failed): shares of rollouts; `rollouts/num_dropped`: count
    - `success_all`: like `success`, but dropped rollouts count as not successful
    - recovery from tool errors, and the effect of infrastructure failures: see `failure_metrics`
    - `harness/...`: see `harness_metrics`
    - `groups/zero_variance`: share of groups with equal rewards, which give no training signal
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    counted = [rollout for group in groups for rollout in _counted(group)]
    if not counted:
        return {**_failures(rollouts), **harness_metrics(rollouts)}
    return {
        **(_rewards(groups, counted, success_threshold) if any("score" in each.rewards for each in counted) else {}),
        **_sizes(counted),
        **context_metrics(counted),
        **_tools([call for rollout in counted for call in rollout.tool_calls]),
        **recovery_metrics(counted, success_threshold),
        **left_out_metrics(rollouts),
        **{f"stop/{stop}": _share(rollout.stop is stop for rollout in counted) for stop in Stop},
        **_failures(rollouts),
        **harness_metrics(rollouts),
    }


def excluded_metrics(groups: Sequence[Group], others: Mapping[str, Excluded] = {}) -> dict[str, float]:
    """Return `rollout/excluded/<reason>`: the number of rollouts that are excluded from training for that reason.

    Args:
        others: rollout id -> reason, for rollouts that do not store the reason themselves.
    """
    reasons = Counter(each.excluded for group in groups for each in group.rollouts if each.excluded)
    reasons.update(others.values())
    return {f"rollout/excluded/{reason}": float(count) for reason, count in sorted(reasons.items())}


def _rewards(groups: Sequence[Group], counted: Sequence[Rollout], success_threshold: float) -> dict[str, float]:
    scores = [rollout.reward for rollout in counted]
    by_source: dict[str, list[bool]] = defaultdict(list)
    for group in groups:
        by_source[group.task.data_source] += [each.reward >= success_threshold for each in _counted(group)]
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, value in chain.from_iterable(rollout.rewards.items() for rollout in counted):
        by_name[name].append(value)
    by_name.pop("score", None)
    spreads = [len({each.reward for each in _counted(group)}) for group in groups]
    return {
        "reward/mean": fmean(scores),
        "reward/std": pstdev(scores),
        **{f"reward/{name}": fmean(values) for name, values in sorted(by_name.items())},
        "success": _share(score >= success_threshold for score in scores),
        "success_all": sum(score >= success_threshold for score in scores) / sum(len(each.rollouts) for each in groups),
        **{f"success/{source}": _share(successes) for source, successes in sorted(by_source.items()) if successes},
        "groups/zero_variance": _share(spread == 1 for spread in spreads if spread),
    }


def _sizes(counted: Sequence[Rollout]) -> dict[str, float]:
    lengths = [sum(trajectory.num_response_tokens for trajectory in rollout.trajectories) for rollout in counted]
    turns = [sum(trajectory.num_turns for trajectory in rollout.trajectories) for rollout in counted]
    return {
        "response_length/mean": fmean(lengths),
        "response_length/max": float(max(lengths)),
        "num_turns/mean": fmean(turns),
        "num_turns/max": float(max(turns)),
        "tool_calls/mean": fmean(len(rollout.tool_calls) for rollout in counted),
        "tool_calls/share": _share(_called_well(rollout) for rollout in counted),
        "rollout_s/mean": fmean(rollout.duration_s for rollout in counted),
        "rollout_s/max": max(rollout.duration_s for rollout in counted),
    }


def _tools(calls: Sequence[ToolCall]) -> dict[str, float]:
    # calls of tools that the model invented count as `unknown`
    real = {call.name for call in calls if call.outcome not in (Outcome.FORMAT_ERROR, Outcome.LIMIT_ERROR)}
    by_name: dict[str, list[ToolCall]] = defaultdict(list)
    for call in calls:
        by_name[call.name if call.name in real else "unknown"].append(call)
    metrics: dict[str, float] = {}
    for name, its_calls in sorted(by_name.items()):
        metrics |= {f"tool/{name}/{key}": value for key, value in _tool(its_calls).items()}
    return metrics


def _tool(calls: Sequence[ToolCall]) -> dict[str, float]:
    durations = [call.duration_s for call in calls]
    return {
        "calls": float(len(calls)),
        **{outcome.value: float(sum(call.outcome is outcome for call in calls)) for outcome in Outcome},
        "p50_s": percentile(durations, 50),
        "p95_s": percentile(durations, 95),
        "tokens_per_call": fmean(call.num_tokens for call in calls),
    }


def _failures(rollouts: Sequence[Rollout]) -> dict[str, float]:
    if not rollouts:
        return {}
    return {
        "rollouts/failed": _share(rollout.stop is Stop.ERROR for rollout in rollouts),
        "rollouts/infra_failed": _share(rollout.infra_failed for rollout in rollouts),
        "rollouts/dropped": _share(rollout.failed for rollout in rollouts),
        "rollouts/num_dropped": float(sum(rollout.failed for rollout in rollouts)),
    }


def _counted(group: Group) -> list[Rollout]:
    return [rollout for rollout in group.rollouts if not rollout.failed]


def _called_well(rollout: Rollout) -> bool:
    return any(call.outcome is Outcome.OK for call in rollout.tool_calls)


def _share(flags: Iterable[bool]) -> float:
    """Share of `flags` that are true; 0 if there are none."""
    listed = list(flags)
    return sum(listed) / len(listed) if listed else 0.0
