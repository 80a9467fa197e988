"""What every mode of `agentrl replay` is given, and what it gives back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

from pydantic import JsonValue

from agentrl.estimates.base import Estimate

if TYPE_CHECKING:
    from agentrl.replay.saved import SavedRun
    from agentrl.store.stored import StoredRollout

Key: TypeAlias = tuple[int, str, int]
"""Which rollout: (step, uid, its number in its group)."""

T = TypeVar("T")

ALL = "all"
"""What the line over every step or data source is called."""

Cell: TypeAlias = str | int | float | Estimate | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for a person to read; a float is shown with four digits, an estimate with its interval."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What a mode found.

    Attributes:
        summary: one line.
        tables: for the terminal and the page.
        values: all of it, for a program.
        failed: the command ends with exit status 1.
    """

    mode: str
    summary: str
    tables: Sequence[Table] = ()
    values: Mapping[str, JsonValue] = field(default_factory=dict)
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the modes.

    Attributes:
        rewards: `path/to/file.py:function` or a built-in's name, each scored under that name.
        overrides: keys of the configuration, nested, laid over what the run kept (`replay.settings`).
        tokenizer: a folder or name in place of the run's own.
        other: what `compare` holds the run against, `PATH[@STEP]`.
        from_turn: the model turn that `from-turn` goes on at, counted from 0.
        unrecorded: what `tools` and `from-turn` do about a call that was not recorded; None leaves it to them.
        out: the folder that new rollouts go to.
        allow_unchecked: an audit may pass that could not check an invariant at all.
        ks: the k of pass@k and pass^k.
        level: of all intervals.
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


@dataclass(frozen=True, slots=True)
class Replay:
    """One command: what is replayed and how, and the scores that earlier modes gave.

    Attributes:
        scores: reward's name -> rollout -> its score; filled by `rescore`, in the order of `options.rewards`.
    """

    run: SavedRun
    options: Options
    scores: dict[str, dict[Key, float]] = field(default_factory=dict)

    def score(self, stored: StoredRollout) -> float | None:
        """What later modes go by: the score of the first new reward, else the saved one. None: it has none."""
        if not self.scores:
            return stored.rollout.rewards.get("score")
        return next(iter(self.scores.values())).get(key_of(stored))


class Mode(Protocol):
    """One way to look at saved rollouts again."""

    def __call__(self, replay: Replay) -> Result:
        """Do it.

        Raises:
            AgentRLError: it cannot be done with what was given.
        """
        ...


def key_of(stored: StoredRollout) -> Key:
    """Which rollout this is."""
    return stored.step, stored.task.uid, stored.number


def by_task(values: Iterable[tuple[Hashable, T]]) -> list[list[T]]:
    """The values of each task, from (task, value) of each: rollouts of one task resemble each other."""
    tasks: dict[Hashable, list[T]] = defaultdict(list)
    for task, value in values:
        tasks[task].append(value)
    return list(tasks.values())
