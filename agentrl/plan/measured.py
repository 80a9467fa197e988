"""Lengths and seconds of a finished or running run, read from its folder.

The run's configuration may name code; this code is not executed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl.errors import DataError
from agentrl.plan.lengths import RolloutLengths, Turn
from agentrl.replay.saved_run import SavedRun, open_saved
from agentrl.store import StoredRollout
from agentrl.telemetry.jsonl import METRICS_FILE, read_metrics
from agentrl.types.rollout import Rollout, ToolCall
from agentrl.types.trajectory import Author

MAX_WAIT_S = 86_400.0
"""Upper bound on the tool seconds of a turn, because a saved duration may be any number."""
MAX_ROLLOUTS = 4_096
"""Maximum number of rollouts that are read; the rollouts of the last steps are read first."""
COLUMNS = ("uid", "trajectories.segments", "tool_calls")


@dataclass(frozen=True, slots=True)
class MeasuredLengths:
    """The lengths of saved groups, in the order in which they were saved, repeated without end. See `Lengths`."""

    groups: Sequence[Sequence[RolloutLengths]]

    def group(self, number: int, size: int) -> Sequence[RolloutLengths]:
        """Return the lengths of saved group `number`; its rollouts repeat if there are fewer than `size`."""
        found = self.groups[number % len(self.groups)]
        return [found[each % len(found)] for each in range(size)]


@dataclass(frozen=True, slots=True)
class Measured:
    """Lengths and times of a saved run.

    Attributes:
        steps: rows of metrics.jsonl with a training step, except the first step, which includes loading and compiling.
    """

    name: str
    lengths: MeasuredLengths
    steps: Sequence[Mapping[str, float]]

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over the steps that have it; None if no step has it."""
        values = [step[metric] for step in self.steps if metric in step]
        return statistics.fmean(values) if values else None

    def median(self, metric: str) -> float | None:
        """Return the median of a metric, which a few slow steps do not change."""
        values = [step[metric] for step in self.steps if metric in step]
        return statistics.median(values) if values else None


def read_run(where: str) -> Measured:
    """Read the lengths of the training rollouts of `RUN` or `RUN@STEP`, and the metrics of the run.

    Raises:
        DataError: there are no rollouts, or a file cannot be read.
    """
    run = open_saved(where)
    groups = [_lengths_of_group([stored.rollout for stored in members]) for members in _last_groups(run)]
    kept = [found for group in groups if (found := [each for each in group if each.turns])]
    if not kept:
        raise DataError(f"'{where}': no rollout has tokens of the model")
    return Measured(where, MeasuredLengths(kept), list(_steps(run)))


def lengths_of(rollout: Rollout) -> RolloutLengths:
    """Return the lengths of a saved rollout.

    If a trajectory starts with the same tokens as the trajectory before it, the KV cache of these tokens is reused.
    """
    turns, number, before = list[Turn](), 0, list[int]()
    for trajectory in rollout.trajectories:
        tokens = list(trajectory.token_ids)
        context, computed = 0, _num_common(before, tokens)
        for segment in trajectory.segments:
            if segment.author is Author.MODEL:
                calls = [call for call in rollout.tool_calls if call.turn == number]
                turns.append(Turn(context, max(1, context - computed), len(segment), _wait_s(calls)))
                number, computed = number + 1, context + len(segment)
            context += len(segment)
        before = tokens
    sizes = tuple(len(trajectory.token_ids) for trajectory in rollout.trajectories)
    return RolloutLengths(tuple(turns), sizes, turns[0].context if turns else 0)


def _lengths_of_group(rollouts: Sequence[Rollout]) -> list[RolloutLengths]:
    """Return the lengths of a task's rollouts.

    To compute `shared`, all trajectories are sorted, and each is compared with the trajectory before it.
    """
    tokens = [[list(each.token_ids) for each in rollout.trajectories] for rollout in rollouts]
    shared, before = [[0] * len(each) for each in tokens], list[int]()
    places = [(rollout, number) for rollout, each in enumerate(tokens) for number in range(len(each))]
    for rollout, number in sorted(places, key=lambda place: tokens[place[0]][place[1]]):
        own = tokens[rollout][number]
        shared[rollout][number], before = _num_common(before, own), own
    found = map(lengths_of, rollouts)
    return [replace(each, shared=tuple(common)) for each, common in zip(found, shared, strict=True)]


def _wait_s(calls: Sequence[ToolCall]) -> float:
    """Return the seconds from the start of the first of these calls to the end of the last one."""
    spans = [(call.started_s, call.started_s + call.duration_s) for call in calls]
    known = [(start, end) for start, end in spans if math.isfinite(start) and math.isfinite(end) and start <= end]
    seconds = max((end for _, end in known), default=0.0) - min((start for start, _ in known), default=0.0)
    return min(max(0.0, seconds), MAX_WAIT_S)


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix, found by bisection, because comparing slices of lists is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _last_groups(run: SavedRun) -> Iterator[list[StoredRollout]]:
    """Yield the groups of the last steps, oldest step first.

    At most `MAX_ROLLOUTS` rollouts are read, so the last group that was read may be incomplete.
    """
    chosen, num = list[list[StoredRollout]](), 0
    for step in reversed(run.steps):
        of_step: dict[str, list[StoredRollout]] = {}
        for stored in run.store.scan(steps=[step], columns=COLUMNS):
            of_step.setdefault(stored.task.uid, []).append(stored)
            num += 1
            if num >= MAX_ROLLOUTS:
                break
        chosen[:0] = of_step.values()
        if num >= MAX_ROLLOUTS:
            break
    yield from chosen


def _steps(run: SavedRun) -> Iterator[dict[str, float]]:
    path = run.folder / METRICS_FILE if run.folder else None
    if path is None or not path.is_file():
        return
    for row in read_metrics(path):
        numbers = {
            name: float(value)
            for name, value in row.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
        }
        if row["step"] > 1 and "timing_s/learn" in numbers:
            yield numbers
