"""Behaviour of two sides (see `pairs`) on the same tasks: success rates, turns, tokens, tool calls, stop reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from agentrl.replay.base import Cell
from agentrl.replay.compare.pairs import Attempt, Pair
from agentrl.stats.intervals import mean_estimate, task_mean_estimate
from agentrl.stats.pass_at_k import pass_at_k_estimate, pass_hat_k_estimate
from agentrl.types.rollout import Outcome, Stop

NOT_EXECUTED = (Outcome.FORMAT_ERROR, Outcome.LIMIT_ERROR)
"""Outcomes of calls that execute no tool. A tool with only such calls is not listed, because the tool may not exist."""

Measure: TypeAlias = Callable[[Attempt], Iterable[float]]
"""Function that returns the values that one rollout contributes to a mean."""


def passing_rows(
    pairs: Sequence[Pair], ks: Iterable[int], thresholds: Sequence[float], level: float
) -> list[list[Cell]]:
    """Return table rows: score, success (pass@1), and pass@k and pass^k for each k above 1.

    A cell is None if no task has k rollouts.
    """
    sides = [[pair.scores(side) for pair in pairs] for side in (0, 1)]
    passed = [
        [[score >= threshold for score in scores] for scores in tasks]
        for threshold, tasks in zip(thresholds, sides, strict=True)
    ]
    counts = [[(len(flags), sum(flags)) for flags in tasks] for tasks in passed]
    rows: list[list[Cell]] = [
        ["score", *(task_mean_estimate(tasks, level) for tasks in sides)],
        ["success (pass@1)", *(task_mean_estimate(tasks, level) for tasks in passed)],
    ]
    for k in (k for k in ks if k > 1):
        rows.append([f"pass@{k}", *(pass_at_k_estimate(tasks, k, level) for tasks in counts)])
        rows.append([f"pass^{k}", *(pass_hat_k_estimate(tasks, k, level) for tasks in counts)])
    return rows


def behavior_rows(pairs: Sequence[Pair], level: float) -> list[list[Cell]]:
    """Return table rows: mean turns, tokens and tool calls of the rollouts that did not fail."""
    rows = [
        _row("turns", pairs, lambda attempt: [attempt.num_turns], level),
        _row("response tokens", pairs, lambda attempt: [attempt.num_response_tokens], level),
        _row("tool calls", pairs, lambda attempt: [len(attempt.calls)], level),
        _row("of them ok", pairs, lambda attempt: [outcome is Outcome.OK for _, outcome in attempt.calls], level, True),
    ]
    for tool in _tools(pairs):
        rows.append(_row(f"{tool}: calls", pairs, partial(_num_calls, tool), level))
        rows.append(_row(f"{tool}: ok", pairs, partial(_calls_ok, tool), level, True))
    return rows


def ending_rows(pairs: Sequence[Pair]) -> list[list[Cell]]:
    """Return table rows: the number of rollouts per stop reason; failed rollouts are counted separately."""
    sides = [[attempt for pair in pairs for attempt in pair.sides[side]] for side in (0, 1)]
    ended = [Counter("failed" if attempt.failed else attempt.stop.value for attempt in side) for side in sides]
    names = [name for name in (*(stop.value for stop in Stop), "failed") if any(name in side for side in ended)]
    rows: list[list[Cell]] = [[name, *(side[name] for side in ended)] for name in names]
    return [*rows, ["all", *map(len, sides)]]


def _tools(pairs: Sequence[Pair]) -> list[str]:
    calls = [call for pair in pairs for side in pair.sides for attempt in side for call in attempt.calls]
    return sorted({name for name, outcome in calls if outcome not in NOT_EXECUTED})


def _num_calls(tool: str, attempt: Attempt) -> list[float]:
    return [sum(name == tool for name, _ in attempt.calls)]


def _calls_ok(tool: str, attempt: Attempt) -> list[float]:
    return [outcome is Outcome.OK for name, outcome in attempt.calls if name == tool]


def _row(name: str, pairs: Sequence[Pair], measure: Measure, level: float, share: bool = False) -> list[Cell]:
    """Table row with the mean of each side's values; None if a side has no values, for example no calls of a tool."""
    row: list[Cell] = [name]
    for side in (0, 1):
        counted = [[attempt for attempt in pair.sides[side] if not attempt.failed] for pair in pairs]
        clusters = [[value for attempt in attempts for value in measure(attempt)] for attempts in counted]
        row.append(mean_estimate(clusters, level, share) if any(clusters) else None)
    return row
