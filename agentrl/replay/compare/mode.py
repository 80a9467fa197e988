"""`compare`: compare two runs, checkpoints or steps, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.config.reward import RewardConfig
from agentrl.errors import ConfigError, DataError
from agentrl.replay.base import ALL, Cell, Options, Replay, Result, Table
from agentrl.replay.compare.behavior import behavior_rows, ending_rows, passing_rows
from agentrl.replay.compare.first_difference import difference_table, same_seed_pairs
from agentrl.replay.compare.pairs import Pair, TaskKey, attempts, matched
from agentrl.replay.compare.scores import COLUMNS, ScoreLine, score_lines
from agentrl.replay.rescore.mode import rescore
from agentrl.replay.saved_run import SavedRun, open_saved
from agentrl.replay.settings import replay_config
from agentrl.replay.trusted_config import lookup
from agentrl.run_folder.provenance import VOCABULARY
from agentrl.stats.base import Estimate, plain

NUM_EXAMPLES = 3
"""Of the tasks that only one side has, at most this many are listed."""


def compare(replay: Replay) -> Result:
    """Compare the run (A) with `options.other` (B), on the tasks that both sides have.

    Scores and pass rates are compared only on tasks that have scores on both sides. With `options.rewards`, or after
    `rescore`, both sides are scored with the same rewards. Only the scores of the first reward are compared.

    Raises:
        ConfigError: `options.other` is missing.
        DataError: B has no rollouts, or no scored task in common with A.
    """
    both = _sides(replay)
    ours, other = both
    sides = (attempts(ours), attempts(other))
    pairs = matched(*sides)
    scored = [pair for pair in pairs if pair.scored]
    if not scored:
        raise DataError(_no_common_task(replay.run, other.run, len(pairs), [len(side) for side in sides]))
    lines = score_lines(scored, replay.options.level)
    only_a, only_b = ([key for key in side if key not in beside] for side, beside in (sides, sides[::-1]))
    thresholds = [_success_threshold(side) for side in both]
    side_tables = _side_tables(scored, pairs, thresholds, replay.options)
    tables = [
        _score_table(lines, pairs, both),
        *side_tables,
        *_unmatched_table([only_a, only_b]),
        _difference_table(pairs, replay.run, other.run),
    ]
    values: dict[str, object] = {
        "a": replay.run.name,
        "b": other.run.name,
        "rewards": list(other.scores),
        "success_thresholds": {"a": thresholds[0], "b": thresholds[1]},
        "tasks": {
            "matched": len(pairs),
            "scored": len(scored),
            "only_a": len(only_a),
            "only_b": len(only_b),
        },
        "scores": [line.values() for line in lines],
        "sides": {table.title: {str(name): {"a": a, "b": b} for name, a, b in table.rows} for table in side_tables},
        "only_a": [list(key[:2]) for key in only_a],
        "only_b": [list(key[:2]) for key in only_b],
    }
    return Result("compare", lines[-1].summary(), tables, {name: plain(value) for name, value in values.items()})


def _sides(replay: Replay) -> tuple[Replay, Replay]:
    """Return A and B. If an earlier `rescore` scored A, the same rewards score B; else `options.rewards` score both."""
    where = replay.options.other
    if where is None:
        raise ConfigError.keyless("compare: give a second run, for example `agentrl replay RUN@0 compare RUN@last`")
    options = replace(replay.options, rewards=tuple(replay.scores) or replay.options.rewards)
    other = Replay(open_saved(where, replay.run.split), options)
    ours = replay if replay.scores else Replay(replay.run, options)
    for side in (ours, other):
        if options.rewards and not side.scores:
            rescore(side)
    return ours, other


def _no_common_task(a: SavedRun, b: SavedRun, num_matched: int, num_tasks: Sequence[int]) -> str:
    if num_matched:
        return f"'{a.name}' and '{b.name}' have {num_matched} common tasks, but none has a score on both sides"
    return (
        f"'{a.name}' ({num_tasks[0]} tasks) and '{b.name}' ({num_tasks[1]}) have no common task: tasks match if"
        " data_source, index and prompt are equal"
    )


def _score_table(lines: Sequence[ScoreLine], pairs: Sequence[Pair], both: Sequence[Replay]) -> Table:
    runs = [side.run for side in both]
    notes = [f"{side}: {run.name}: {run.description}" for side, run in zip("AB", runs, strict=True)]
    notes += [f"{run.name}: all steps are merged." for run in runs if len(run.steps) > 1]
    notes += [f"Both sides are rescored with {name}." for name in [*both[1].scores][:1]]
    notes += ["Each task has the same weight. p: sign test over the tasks with different means."]
    if left_out := len(pairs) - lines[-1].tasks:
        notes.append(f"Skipped {left_out} common tasks: no score on one side.")
    attempts_made = [attempt for pair in pairs for side in pair.sides for attempt in side]
    if unscored := sum(attempt.score is None and not attempt.failed for attempt in attempts_made):
        notes.append(f"Skipped {unscored} rollouts that did not fail but have no score.")
    return Table("Score", COLUMNS, [line.cells() for line in lines], "\n".join(notes))


def _side_tables(
    scored: Sequence[Pair], pairs: Sequence[Pair], thresholds: Sequence[float], options: Options
) -> list[Table]:
    """Return two tables over all tasks and, if there are several data sources, two tables for each data source."""
    sources = sorted({pair.key[0] for pair in pairs})
    tables = []
    for source in (*(sources if len(sources) > 1 else ()), ALL):
        scored_here, here = ([pair for pair in part if source in (ALL, pair.key[0])] for part in (scored, pairs))
        passing = passing_rows(scored_here, options.ks, thresholds, options.level) if scored_here else []
        rows = [row for row in passing if row[1:] != [None, None]]
        note = _passing_note(passing, thresholds, len(scored_here))
        tables.append(Table(source, ("", "A", "B"), [*rows, *behavior_rows(here, options.level)], note))
        tables.append(Table(f"{source}: how rollouts ended", ("", "A", "B"), ending_rows(here)))
    return tables


def _passing_note(rows: Sequence[Sequence[Cell]], thresholds: Sequence[float], num_tasks: int) -> str:
    each = "" if len(set(thresholds)) == 1 else f" in A, {thresholds[1]:g} or more in B"
    notes = [f"Success: a score of {thresholds[0]:g} or more{each}."]
    if missing := [str(name) for name, *cells in rows if not any(cells)]:
        notes.append(f"Not available: {', '.join(missing)} (no task has enough rollouts).")
    sizes = {str(name): [cell.num for cell in cells if isinstance(cell, Estimate)] for name, *cells in rows}
    if partial := [name for name, nums in sizes.items() if nums and min(nums) < num_tasks]:
        notes.append(f"Only over tasks with enough rollouts: {', '.join(partial)}.")
    return " ".join(notes)


def _success_threshold(replay: Replay) -> float:
    if replay.options.overrides:
        return replay_config(replay).reward.success_threshold
    saved = lookup(replay.run.config, "reward.success_threshold")
    return float(saved) if isinstance(saved, int | float) else RewardConfig().success_threshold


def _unmatched_table(unmatched: Sequence[Sequence[TaskKey]]) -> list[Table]:
    rows: list[list[Cell]] = [
        [side, len(keys), ", ".join(f"{source} {index}" for source, index, _ in keys[:NUM_EXAMPLES])]
        for side, keys in zip("AB", unmatched, strict=True)
        if keys
    ]
    table = Table("Tasks on one side only", ("side", "tasks", "examples"), rows, "These tasks are not compared.")
    return [table] if rows else []


def _difference_table(pairs: Sequence[Pair], a: SavedRun, b: SavedRun) -> Table:
    vocabularies = {hashed for run in (a, b) if (hashed := run.provenance.get(VOCABULARY))}
    if len(vocabularies) > 1:
        return Table("Rollouts with the same seed", (), (), "Not compared: the runs have different tokenizers.")
    return difference_table(same_seed_pairs(pairs))
