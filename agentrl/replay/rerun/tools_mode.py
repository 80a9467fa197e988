"""`tools`: re-run saved rollouts with recorded tool results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from agentrl.concurrency.notebook import run_loop
from agentrl.replay.base import Cell, Key, Replay, Result, Table, by_task, key_of
from agentrl.replay.rerun.runner import Rerun, new_folder, open_rerunner, refuse_steps, rerun_of
from agentrl.stats.base import Estimate, plain
from agentrl.stats.intervals import mean_estimate
from agentrl.store import StoredRollout
from agentrl.types.rollout import Group, Rollout
from agentrl.types.trajectory import Author, Trajectory

MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Divergence:
    """Position of the first token at which a re-run differs from the saved rollout.

    Attributes:
        turn: index, from 0, of the last model turn that started at or before the token; -1: no turn had started.
        token: index in the saved segment, from 0; the segment's length if the re-run has the same tokens and more.
    """

    trajectory: int
    turn: int
    author: Author
    token: int


@dataclass(frozen=True, slots=True)
class RerunResult:
    """A saved rollout and the result of its re-run.

    Attributes:
        difference: the first difference; None if every token is the same.
        saved_score, score: None if there is no score.
        num_recorded: number of tool calls that got a recorded result.
        unrecorded: the tool calls without a recorded result.
    """

    key: Key
    difference: Divergence | None
    saved_score: float | None
    score: float | None
    num_recorded: int
    unrecorded: Sequence[str]


def tools(replay: Replay) -> Result:
    """Re-run the saved rollouts with their saved seeds, and with the run's settings for the split (`train` or `val`).

    With the same policy and `rollout.deterministic`, the re-run has exactly the saved tokens. So with
    `rollout.deterministic`, every difference from the saved tokens comes from a different policy. The mode fails if a
    tool call without a recorded result ended a rollout.

    New rollouts are saved in the folder of `--out`, or else under `replays/` in the run's folder.

    Raises:
        AgentRLError: see `rerun.runner.open_rerunner`.
    """
    return run_loop(_tools(replay))


async def _tools(replay: Replay) -> Result:
    out = new_folder(replay, "tools")
    found: list[RerunResult] = []
    async with open_rerunner(replay, "tools", "error") as rerunner:
        for step, rows in groupby(replay.run.rollouts(), key=lambda stored: stored.step):
            attempts = [_attempt(saved) for saved in rows]
            rollouts = await rerunner.roll_out(attempts)
            rerunner.store(out).write(step, _groups(attempts, rollouts))
            found += map(_rerun_result, attempts, rollouts)
        deterministic, failing = rerunner.parts.config.rollout.deterministic, rerunner.ends_unrecorded
    result = _result(found, out, replay.options.level, deterministic)
    return replace(result, failed=failing and any(each.unrecorded for each in found))


def _attempt(saved: StoredRollout) -> Rerun:
    refuse_steps(saved)
    return rerun_of(saved, saved.rollout.seed)


def _groups(attempts: Sequence[Rerun], rollouts: Sequence[Rollout]) -> list[Group]:
    """Put the new rollouts into the groups of the saved rollouts."""
    groups: list[Group] = []
    for attempt, rollout in zip(attempts, rollouts, strict=True):
        if not groups or groups[-1].uid != attempt.saved.task.uid:
            groups.append(Group(attempt.saved.task, []))
        groups[-1].rollouts.append(rollout)
    return groups


def _rerun_result(attempt: Rerun, rollout: Rollout) -> RerunResult:
    saved: StoredRollout = attempt.saved
    return RerunResult(
        key_of(saved),
        divergence(saved.rollout.trajectories, rollout.trajectories),
        saved.rollout.rewards.get("score"),
        rollout.rewards.get("score"),
        attempt.recording.num_answered,
        attempt.recording.unrecorded,
    )


def _result(found: Sequence[RerunResult], out: Path, level: float, deterministic: bool) -> Result:
    different = [each for each in found if each.difference]
    num_same = len(found) - len(different)
    num_recorded, num_unrecorded = sum(each.num_recorded for each in found), sum(len(each.unrecorded) for each in found)
    summary = (
        f"{num_same:,} of {len(found):,} rollouts have exactly the same tokens; calls: {num_recorded:,} answered"
        f" from the recording, {num_unrecorded:,} not recorded; new rollouts: {out}"
    )
    note = "" if deterministic else "rollout.deterministic=false: tokens may differ even with the same policy."
    steps = [list(rows) for _, rows in groupby(found, key=lambda each: each.key[0])]
    tables = [Table("Re-run", _COLUMNS, [_row(rows, level) for rows in steps], note)]
    if different:
        more = len(different) - MAX_SHOWN
        hidden = f"{more:,} more rollouts differ; --json lists them." if more > 0 else ""
        shown = [_difference_row(each) for each in different[:MAX_SHOWN]]
        tables.append(Table("First difference", _CHANGED_COLUMNS, shown, hidden))
    values = {
        "out": str(out),
        "deterministic": deterministic,
        "num_rollouts": len(found),
        "num_same": num_same,
        "num_recorded_calls": num_recorded,
        "num_unrecorded_calls": num_unrecorded,
        "rollouts": [_values(each) for each in found],
    }
    return Result("tools", summary, tables, {name: plain(value) for name, value in values.items()})


_COLUMNS = ("step", "rollouts", "same tokens", "saved reward", "new reward", "calls recorded", "not recorded")
_CHANGED_COLUMNS = (
    "step",
    "uid",
    "rollout",
    "turn",
    "author",
    "token",
    "saved reward",
    "new reward",
    "not recorded",
)


def _row(rows: Sequence[RerunResult], level: float) -> list[Cell]:
    return [
        rows[0].key[0],
        len(rows),
        sum(each.difference is None for each in rows),
        _mean([(each.key, each.saved_score) for each in rows], level),
        _mean([(each.key, each.score) for each in rows], level),
        sum(each.num_recorded for each in rows),
        sum(len(each.unrecorded) for each in rows),
    ]


def _difference_row(each: RerunResult) -> list[Cell]:
    assert each.difference is not None  # the caller passes only rollouts that differ
    place = [each.difference.turn, each.difference.author.value, each.difference.token]
    return [*each.key, *place, each.saved_score, each.score, next(iter(each.unrecorded), None)]


def _values(each: RerunResult) -> dict[str, object]:
    values = asdict(each)
    return {"key": values.pop("key"), "parted": values.pop("difference"), **values}


def _mean(scores: Sequence[tuple[Key, float | None]], level: float) -> Estimate | None:
    """Mean over rollouts, clustered by task, because rollouts of one task are not independent."""
    tasks = by_task((key[:2], score) for key, score in scores if score is not None)
    return mean_estimate(tasks, level) if tasks else None


def divergence(saved: Sequence[Trajectory], rerun: Sequence[Trajectory]) -> Divergence | None:
    """Find the first difference; None if all tokens of all trajectories are the same."""
    for number, trajectory in enumerate(saved):
        ours, theirs = trajectory.token_ids, rerun[number].token_ids if number < len(rerun) else ()
        if ours == theirs:
            continue
        shorter = min(len(ours), len(theirs))
        first = next((place for place in range(shorter) if ours[place] != theirs[place]), shorter)
        return _place(number, trajectory, first)
    return _place(len(saved) - 1, saved[-1], len(saved[-1].token_ids)) if saved and len(rerun) > len(saved) else None


def _place(number: int, trajectory: Trajectory, position: int) -> Divergence:
    turn, start, last = -1, 0, trajectory.segments[-1]
    for segment in trajectory.segments:
        turn += segment.author is Author.MODEL
        if position < start + len(segment) or segment is last:
            return Divergence(number, turn, segment.author, position - start)
        start += len(segment)
    raise AssertionError("a trajectory has segments")
