"""What is to be replayed: the rollouts of a run's folder, of a store, or of one Parquet file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from pydantic import JsonValue

from agentrl.errors import DataError
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.trainer.provenance import CONFIG
from agentrl.trainer.source_parts import TRAJECTORIES

SPLITS = ("train", "val")


@dataclass(frozen=True)
class SavedRun:
    """Saved rollouts, and what is known of how they were made. Reading runs no code that they name.

    Attributes:
        name: what they are called in tables, as the user wrote it.
        folder: the run's folder; None where there is only a store or a file.
        steps: those that are asked for, ascending; at least one.
    """

    name: str
    folder: Path | None
    store: TrajectoryStore
    split: str
    steps: Sequence[int]

    def rollouts(self, columns: Collection[str] | None = None) -> Iterator[StoredRollout]:
        """Every rollout, step by step; `columns` as in `TrajectoryStore.scan`."""
        return self.store.scan(steps=self.steps, columns=columns)

    def groups(self, columns: Collection[str] | None = None) -> Iterator[list[StoredRollout]]:
        """The rollouts of each group, in the order written."""
        siblings = groupby(self.rollouts(columns), key=lambda stored: (stored.step, stored.task.uid))
        return (list(members) for _, members in siblings)

    @cached_property
    def provenance(self) -> Mapping[str, str]:
        """What the first of the files was written with (`trainer.provenance`)."""
        return self.store.provenance(self.steps[0])

    @cached_property
    def config(self) -> Mapping[str, JsonValue]:
        """The configuration they were made with, as plain values; empty where it is not known."""
        kept: Mapping[str, JsonValue] = json.loads(self.provenance.get(CONFIG, "{}"))
        return kept


def open_saved(where: str, split: str | None = None) -> SavedRun:
    """The rollouts at `PATH` or `PATH@STEP`; STEP is a number, `first` or `last`.

    Args:
        where: a run's folder, or the folder of its files.
        split: `train` or `val`; by default the first of them that is there.

    Raises:
        DataError: there are none; says where they were looked for.
    """
    path, _, step = where.partition("@")
    for name in (split,) if split else SPLITS:
        for folder in (Path(path) / TRAJECTORIES / name, Path(path) / name, Path(path)):
            store = TrajectoryStore(folder)
            if steps := store.steps:
                return SavedRun(where, Path(path), store, name, _chosen(steps, step, where))
    raise DataError(f"'{path}' holds no trajectories")


def _chosen(steps: Sequence[int], asked: str, where: str) -> Sequence[int]:
    if not asked:
        return steps
    named = {"first": steps[0], "last": steps[-1], **{str(step): step for step in steps}}
    if asked not in named:
        raise DataError(f"'{where}': no such step; kept are {steps[0]} to {steps[-1]}")
    return [named[asked]]
