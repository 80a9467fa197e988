"""Measure how often the policy recovers from tool errors, and how infrastructure failures bias the rollouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from agentrl.stats.left_out import left_out_weights, weighted_mean
from agentrl.types.rollout import Outcome, Rollout, ToolCall

_NOT_RUN = (Outcome.FORMAT_ERROR, Outcome.LIMIT_ERROR, Outcome.ABORTED)


def recovery_metrics(rollouts: Sequence[Rollout], success_threshold: float) -> dict[str, float]:
    """Return metrics of recovery from tool errors, for each tool with a `tool_error`.

    Each metric is a share of the rollouts in which a call of the tool had the outcome `tool_error`.

    - `tool/<tool>/recovered`: in a turn after the first of these calls, a call of the tool had the outcome `ok`
    - `tool/<tool>/success_after_error`: the rollout is a success (only rollouts with a score count)
    """
    recovered: dict[str, list[bool]] = defaultdict(list)
    successes: dict[str, list[bool]] = defaultdict(list)
    for rollout in rollouts:
        for tool, error in _first_errors(rollout).items():
            recovered[tool].append(any(_is_later(call, error) for call in rollout.tool_calls))
            if "score" in rollout.rewards:
                successes[tool].append(rollout.reward >= success_threshold)
    return {
        **{f"tool/{tool}/recovered": fmean(flags) for tool, flags in sorted(recovered.items())},
        **{f"tool/{tool}/success_after_error": fmean(flags) for tool, flags in sorted(successes.items())},
    }


def left_out_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Estimate how much infrastructure failures of tools shift the mean number of calls and the mean score.

    The remaining rollouts are the rollouts that did not fail. The result is empty without such failures, or without
    remaining rollouts.

    - `left_out/calls_shift`: (estimated mean number of calls) / (mean number of calls of the remaining rollouts) - 1
    - `left_out/score_shift`: estimated mean score - mean score of the remaining rollouts, if each of them has a score

    An estimate is the mean that would result if no rollout had failed. It is computed as a weighted mean over the
    remaining rollouts; see `agentrl.stats.left_out`.
    """
    failures = [_failed_call(rollout) for rollout in rollouts]
    failed = [failure is not None for failure in failures]
    kept = [rollout for rollout in rollouts if not rollout.failed]
    if not (kept and any(failed)):
        return {}
    num_calls = [_num_run(rollout, failure) for rollout, failure in zip(rollouts, failures, strict=True)]
    every = zip(rollouts, left_out_weights(num_calls, failed), num_calls, strict=True)
    weights, calls = zip(*((weight, count) for rollout, weight, count in every if not rollout.failed), strict=True)
    mean_calls = fmean(calls)
    shift = weighted_mean(calls, weights) / mean_calls - 1 if mean_calls else 0.0
    return {"left_out/calls_shift": shift, **_score_shift(kept, weights)}


def _score_shift(kept: Sequence[Rollout], weights: Sequence[float]) -> dict[str, float]:
    if not all("score" in rollout.rewards for rollout in kept):
        return {}
    scores = [rollout.reward for rollout in kept]
    return {"left_out/score_shift": weighted_mean(scores, weights) - fmean(scores)}


def _first_errors(rollout: Rollout) -> dict[str, ToolCall]:
    errors: dict[str, ToolCall] = {}
    for call in rollout.tool_calls:
        if call.outcome is Outcome.TOOL_ERROR:
            errors.setdefault(call.name, call)
    return errors


def _is_later(call: ToolCall, error: ToolCall) -> bool:
    later = (call.trajectory, call.turn) > (error.trajectory, error.turn)
    return later and call.name == error.name and call.outcome is Outcome.OK


def _failed_call(rollout: Rollout) -> int | None:
    """Index of the tool call whose infrastructure failure made the rollout fail; None if there is no such call."""
    outcomes = [call.outcome for call in rollout.tool_calls]
    return outcomes.index(Outcome.INFRA_ERROR) if rollout.infra_failed and Outcome.INFRA_ERROR in outcomes else None


def _num_run(rollout: Rollout, failure: int | None) -> int:
    """Number of tool calls that ran, up to and including the failed call at index `failure`."""
    calls = rollout.tool_calls if failure is None else rollout.tool_calls[: failure + 1]
    return sum(call.outcome not in _NOT_RUN for call in calls)
