"""Comparison of new and saved scores: means, agreement, differences per task, largest disagreements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from agentrl.replay.base import ALL, Cell, Key, Table, by_task
from agentrl.replay.rescore.scoring import Scored
from agentrl.stats.base import Estimate, plain
from agentrl.stats.intervals import mean_estimate, paired_difference

SAVED = "saved"
NUM_DISAGREEMENTS, NUM_FAILURES = 10, 20
"""Maximum number of rows in the tables that list single rollouts."""

R = TypeVar("R", "Score", "ScorePair")


@dataclass(frozen=True, slots=True)
class Score:
    """One score of one rollout."""

    task: tuple[str, int]
    value: float


@dataclass(frozen=True, slots=True)
class ScorePair:
    """A rollout's saved score and its new score."""

    key: Key
    task: tuple[str, int]
    saved: float
    new: float

    @property
    def same(self) -> bool:
        """Whether the two scores are equal up to rounding."""
        return math.isclose(self.saved, self.new, rel_tol=1e-9, abs_tol=1e-12)


def tables_of(scored: Sequence[Scored], names: Sequence[str], level: float) -> list[Table]:
    """Tables for display; empty tables are omitted."""
    label = short_names(names)
    pairs = {label[name]: pairs_of(scored, name) for name in names}
    scores = {SAVED: saved_scores(scored), **{label[name]: new_scores(scored, name) for name in names}}
    tables = [
        _by_source_table("mean score", ("score", "tasks", "rollouts", "mean"), list(_means(scores, level))),
        _by_source_table(
            "agreement with the saved score",
            ("score", "same", "higher", "lower", "new - saved"),
            [row for name, own in pairs.items() for row in _agreement(name, own, level)],
        ),
        Table(
            "reward parts",
            ("score", "part", "rollouts", "mean"),
            [row for name in names for row in _parts(label[name], name, scored, level)],
        ),
        Table(
            "largest disagreements",
            ("score", "step", "uid", "rollout", "saved", "new"),
            [row for name, own in pairs.items() for row in _disagreements(name, own)],
        ),
        Table(
            "failed",
            ("score", "rollouts", "first", "error"),
            [row for name in names for row in _failures(label[name], name, scored)],
            "first: step/uid/rollout",
        ),
    ]
    return [table for table in tables if table.rows]


def values_of(scored: Sequence[Scored], names: Sequence[str], level: float) -> dict[str, JsonValue]:
    """The results of `tables_of`, machine-readable, and the scores of every rollout."""
    known = [row.same_text for row in scored if row.same_text is not None]
    return {
        "num_rollouts": len(scored),
        "num_text_known": len(known),
        "num_text_differs": known.count(False),
        "num_from_messages": sum(row.from_messages for row in scored),
        "saved": {"mean": _by_source_mean(saved_scores(scored), level)},
        "rewards": {name: _reward_values(scored, name, level) for name in names},
        "rollouts": [_row_values(row) for row in scored],
    }


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return name -> last path component of the name. If two components are equal, return name -> name for all."""
    short = {name: Path(name).name for name in names}
    return short if len(set(short.values())) == len(names) else {name: name for name in names}


def saved_scores(scored: Iterable[Scored]) -> list[Score]:
    """The saved scores, without rollouts that have no score."""
    return [Score(row.task, row.saved["score"]) for row in scored if "score" in row.saved]


def new_scores(scored: Iterable[Scored], name: str, part: str = "score") -> list[Score]:
    """The new values of reward `name`, without rollouts that have no value."""
    return [Score(row.task, row.new[name][part]) for row in scored if part in row.new.get(name, ())]


def pairs_of(scored: Iterable[Scored], name: str) -> list[ScorePair]:
    """The rollouts that have both a saved and a new score."""
    return [
        ScorePair(row.key, row.task, row.saved["score"], row.new[name]["score"])
        for row in scored
        if name in row.new and "score" in row.saved
    ]


def by_source(rows: Sequence[R]) -> dict[str, list[R]]:
    """Rows of each data source; with several sources, also all rows under `ALL`."""
    sources: dict[str, list[R]] = {}
    for row in rows:
        sources.setdefault(row.task[0], []).append(row)
    return {**sources, ALL: list(rows)} if len(sources) > 1 else sources


def clusters(rows: Iterable[R]) -> list[list[R]]:
    """Group the rows by task."""
    return by_task((row.task, row) for row in rows)


def _by_source_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Table with the data source as first column. If there is only one source, the title names the source instead."""
    sources = {row[0] for row in rows}
    if len(sources) == 1:
        return Table(f"{title}: {sources.pop()}", columns, [row[1:] for row in rows])
    return Table(title, ("data source", *columns), rows)


def _mean(scores: Iterable[Score], level: float) -> Estimate:
    return mean_estimate([[score.value for score in task] for task in clusters(scores)], level)


def _difference(pairs: Iterable[ScorePair], level: float) -> Estimate:
    tasks = clusters(pairs)
    return paired_difference([([p.saved for p in task], [p.new for p in task]) for task in tasks], level)


def _means(scores: Mapping[str, Sequence[Score]], level: float) -> Iterator[list[Cell]]:
    sources = dict.fromkeys(source for rows in scores.values() for source in by_source(rows))
    for source in sources:
        for name, rows in scores.items():
            if own := by_source(rows).get(source):
                yield [source, name, len(clusters(own)), len(own), _mean(own, level)]


def _agreement(name: str, pairs: Sequence[ScorePair], level: float) -> Iterator[list[Cell]]:
    for source, own in by_source(pairs).items():
        higher = sum(pair.new > pair.saved and not pair.same for pair in own)
        lower = sum(pair.new < pair.saved and not pair.same for pair in own)
        yield [source, name, f"{_share_same(own):.1%}", higher, lower, _difference(own, level)]


def _share_same(pairs: Sequence[ScorePair]) -> float:
    return sum(pair.same for pair in pairs) / len(pairs)


def _parts(label: str, name: str, scored: Sequence[Scored], level: float) -> Iterator[list[Cell]]:
    for part in dict.fromkeys(part for row in scored for part in row.new.get(name, ()) if part != "score"):
        scores = new_scores(scored, name, part)
        yield [label, part, len(scores), _mean(scores, level)]


def _disagreements(name: str, pairs: Sequence[ScorePair]) -> Iterator[list[Cell]]:
    different = [pair for pair in pairs if not pair.same]
    for pair in sorted(different, key=lambda pair: -abs(pair.new - pair.saved))[:NUM_DISAGREEMENTS]:
        step, uid, number = pair.key
        yield [name, step, uid, number, pair.saved, pair.new]


def _failures(label: str, name: str, scored: Sequence[Scored]) -> Iterator[list[Cell]]:
    places: dict[str, list[Key]] = {}
    for row in scored:
        if name in row.failures:
            places.setdefault(row.failures[name], []).append(row.key)
    for why, keys in list(places.items())[:NUM_FAILURES]:
        yield [label, len(keys), "/".join(map(str, keys[0])), why]
    if rest := list(places.values())[NUM_FAILURES:]:
        yield [label, sum(map(len, rest)), "/".join(map(str, rest[0][0])), f"{len(rest):,} more errors"]


def _by_source_mean(scores: Sequence[Score], level: float) -> JsonValue:
    return {source: plain(_mean(rows, level)) for source, rows in by_source(scores).items()}


def _reward_values(scored: Sequence[Scored], name: str, level: float) -> JsonValue:
    pairs = pairs_of(scored, name)
    return {
        "num_scored": sum(name in row.new for row in scored),
        "num_failed": sum(name in row.failures for row in scored),
        "mean": _by_source_mean(new_scores(scored, name), level),
        "share_same": _share_same(pairs) if pairs else None,
        "new_less_saved": {source: plain(_difference(own, level)) for source, own in by_source(pairs).items()},
    }


def _row_values(row: Scored) -> JsonValue:
    step, uid, number = row.key
    saved: JsonValue = dict(row.saved)
    new: JsonValue = {name: dict(scores) for name, scores in row.new.items()}
    return {"step": step, "uid": uid, "rollout": number, "saved": saved, "new": new, "failed": dict(row.failures)}
