"""Inputs and results of the modes of `agentrl replay`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

from pydantic import JsonValue

from agentrl.stats.base import Estimate
from agentrl.utils.short_repr import short

if TYPE_CHECKING:
    from agentrl.replay.saved_run import SavedRun
    from agentrl.store.stored import StoredRollout

Key: TypeAlias = tuple[int, str, int]
"""Identifies a rollout: (step, group uid, number of the rollout in its group)."""

T = TypeVar("T")

ALL = "all"
"""Name of the table row for all steps, or for all data sources."""

Cell: TypeAlias = str | int | float | Estimate | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table for display: floats are shown with four significant digits, estimates with their interval."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Result of one mode.

    Attributes:
        summary: the result in one line.
        tables: tables for the terminal and the HTML page.
        values: all results, machine-readable.
        failed: whether the command exits with status 1.
    """

    mode: str
    summary: str
    tables: Sequence[Table] = ()
    values: Mapping[str, JsonValue] = field(default_factory=dict)
    failed: bool = False

    def __repr__(self) -> str:
        return f"Result({self.mode}{', failed' if self.failed else ''}: {short(self.summary, 80)})"


@dataclass(frozen=True, slots=True)
class Options:
    """Command-line options other than the modes.

    Attributes:
        rewards: `path/to/file.py:function` or names of built-in rewards. Tables use these texts as score names.
        overrides: nested configuration keys that replace the run's saved values (`replay.settings`).
        tokenizer: folder or name of a tokenizer to use instead of the run's own tokenizer.
        other: the run that `compare` compares with, `PATH[@STEP]`.
        from_turn: the model turn, counted from 0, at which `from-turn` continues.
        unrecorded: how `tools` and `from-turn` handle tool calls without a recorded result; None: the mode's default.
        out: the folder for new rollouts.
        allow_unchecked: whether an audit passes if an invariant could not be checked.
        ks: the values of k for pass@k and pass^k.
        level: confidence level of all intervals.
        uid: the group that `why` explains.
    """

    rewards: Sequence[str] = ()
    overrides: Mapping[str, object] = field(default_factory=dict)
    tokenizer: str | None = None
    other: str | None = None
    from_turn: int | None = None
    unrecorded: Literal["error", "stub", "live"] | None = None
    out: Path | None = None
    allow_unchecked: bool = False
    ks: Sequence[int] = (1, 2, 4, 8)
    level: float = 0.95
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay command: the saved run, the options, and the scores from earlier modes.

    Attributes:
        scores: reward name -> rollout -> score; filled by `rescore`, in the order of `options.rewards`.
    """

    run: SavedRun
    options: Options
    scores: dict[str, dict[Key, float]] = field(default_factory=dict)

    def score(self, stored: StoredRollout) -> float | None:
        """The score of a rollout: that of the first reward in `scores`, or the saved score if `scores` is empty."""
        if not self.scores:
            return stored.rollout.rewards.get("score")
        return next(iter(self.scores.values())).get(key_of(stored))


class Mode(Protocol):
    """One mode of `agentrl replay`."""

    def __call__(self, replay: Replay) -> Result:
        """Run the mode.

        Raises:
            AgentRLError: the mode cannot run on this run with these options.
        """
        ...


def key_of(stored: StoredRollout) -> Key:
    """Return the key of a rollout."""
    return stored.step, stored.task.uid, stored.number


def by_task(values: Iterable[tuple[Hashable, T]]) -> list[list[T]]:
    """Group (task, value) pairs by task. Intervals need these groups because rollouts of a task are not independent."""
    tasks: dict[Hashable, list[T]] = defaultdict(list)
    for task, value in values:
        tasks[task].append(value)
    return list(tasks.values())
