"""The trajectory store: what was rolled out, kept step by step, and found again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.attempt import Group, Outcome, Stop
from agentrl.errors import DataError
from agentrl.samples import Sample
from agentrl.store.encode import batches
from agentrl.store.files import (
    matching_rollouts,
    open_file,
    read_experts_hash,
    read_provenance,
    steps_of,
    write_batches,
)
from agentrl.store.media import media_folder, read_media, write_media
from agentrl.store.query import Bounds, Query, leaves
from agentrl.store.routed_experts import path_beside, read_beside, remove_orphans, write_beside
from agentrl.store.stored import StoredRollout
from agentrl.store.text import writable
from agentrl.store.whole import remove_parts, whole_file

_NAME = re.compile(r"step-(\d{6,})\.parquet")


class TrajectoryStore:
    """Rollouts under `<folder>/step-000012.parquet`, one file a step and one row a rollout; routed experts beside it,
    images in the run's folder `media`.

    Nothing a file holds is unpickled or run. One store writes to a folder; any number may read it meanwhile.

    Args:
        folder: where the files of this split are; made when the first is written.
        split: what the rollouts were made for, `train` or `val`; kept with each row.
        provenance: what a reader needs to know of the run, such as the hash of its tokenizer; kept with each file.
    """

    def __init__(self, folder: Path, *, split: str = "train", provenance: Mapping[str, str] = {}) -> None:
        self._folder = folder
        self._split = split
        self._provenance = dict(provenance)
        self._file: Path | None = None  # of `of_file`
        self._file_steps: Collection[int] = ()

    @classmethod
    def of_file(cls, path: Path) -> TrajectoryStore:
        """The rollouts of one file, whatever it is called and however many steps are in it; only to be read.

        Raises:
            DataError: it cannot be read, or holds no rollouts.
        """
        store = cls(path.parent)
        store._file, store._file_steps = path, steps_of(path)
        return store

    def write(self, step: int, groups: Sequence[Group], samples: Sequence[Sample] = ()) -> Path:
        """Keep the rollouts of `step`, in place of those kept before; the file.

        A group without rollouts leaves no row. Advantages, and what they follow from (`Scores`, kept as float32), are
        those of `samples`, in the order of their trajectories.

        Raises:
            DataError: a value that cannot be kept; names step or task, and field.
            ValueError: a sample belongs to no trajectory.
        """
        self._check_writable()
        path = self._path(step)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_media(media_folder(self._folder), groups)  # before the rollouts too
        experts_hash = write_beside(path, groups)  # before the rollouts: none of them is ever without its experts
        with whole_file(path) as file:
            write_batches(file, batches(step, self._split, groups, samples), self._provenance, experts_hash)
        if experts_hash is None:
            path_beside(path).unlink(missing_ok=True)
        return path

    @property
    def steps(self) -> list[int]:
        """The steps that are kept, ascending."""
        return sorted(step for step, _ in self._files())

    def file(self, step: int) -> Path:
        """The file that holds `step`; a `DataError` where none does."""
        return self._existing(step)

    def groups(self, step: int) -> list[Group]:
        """What `write` was given for `step`, in its order. Routed experts are read here only.

        Raises:
            DataError: no such step, or a file that cannot be read.
        """
        groups: list[Group] = []
        for stored in matching_rollouts(self._existing(step), self._of_step(Query(), step), None):
            if stored.number == 0:
                groups.append(Group(stored.task, []))
            groups[-1].rollouts.append(stored.rollout)
        if experts_hash := read_experts_hash(self._existing(step)):
            read_beside(self._existing(step), experts_hash, groups)
        return groups

    def provenance(self, step: int) -> dict[str, str]:
        """The provenance that `step` was written with."""
        with open_file(self._existing(step)) as file:
            return read_provenance(file)

    def media(self, name: str) -> bytes:
        """The image that segments and messages call `name`, by the hash of its content.

        Raises:
            DataError: it is not kept, or is damaged.
        """
        return read_media(media_folder(self._folder), name)

    def truncate(self, after_step: int) -> None:
        """Forget the steps after `after_step`, and what a killed writer left behind."""
        self._check_writable()
        for step, path in self._files():
            if step > after_step:
                path.unlink()
        if self._folder.is_dir():
            remove_orphans(self._folder)
            remove_parts(self._folder)

    def scan(
        self,
        *,
        steps: Collection[int] | None = None,
        uid: str | None = None,
        data_source: str | None = None,
        stop: Stop | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        tool: str | None = None,
        outcome: Outcome | None = None,
        columns: Collection[str] | None = None,
    ) -> Iterator[StoredRollout]:
        """The rollouts that are all that is asked, in the order written; a file is read when it is reached.

        Args:
            steps: those that are not kept are passed over.
            min_reward: the least `reward`, included; `max_reward` likewise.
            tool: it called this tool; with `outcome`, one of those calls ended so.
            columns: what to read, all by default: columns of the schema, and `trajectories.messages`, `.segments`,
                `.advantages` and the names of `Scores`. The rest has its default: an empty prompt, no tool calls,
                trajectories without segments.

        Raises:
            UnknownNameError: no such column.
            DataError: while iterating, a file that cannot be read.
        """
        row = {"uid": uid and writable(uid), "data_source": data_source and writable(data_source), "stop": stop}
        call = {"name": tool and writable(tool), "outcome": outcome}
        reward = {} if min_reward is None and max_reward is None else {"reward": (min_reward, max_reward)}
        query = Query({**_equal(row), **reward}, _equal(call))
        return self._scan([step for step in self.steps if steps is None or step in steps], query, leaves(columns))

    def rollout(self, step: int, uid: str, number: int) -> StoredRollout:
        """Rollout `number` of group `uid`.

        Raises:
            DataError: no such rollout, or a file that cannot be read.
        """
        path = self._existing(step)
        query = Query(_equal({"uid": writable(uid), "rollout": number}))
        for stored in matching_rollouts(path, self._of_step(query, step), None):
            return stored
        raise DataError(f"{path}: no rollout {number} of group '{uid}'")

    def _scan(self, steps: Sequence[int], query: Query, columns: list[str] | None) -> Iterator[StoredRollout]:
        for step in steps:
            yield from matching_rollouts(self._path(step), self._of_step(query, step), columns)

    def _of_step(self, query: Query, step: int) -> Query:
        """Of files named by their step every row is wanted, which need not be asked."""
        return replace(query, rollout={**query.rollout, **_equal({"step": step})}) if self._file else query

    def _path(self, step: int) -> Path:
        return self._file or self._folder / f"step-{step:06d}.parquet"

    def _check_writable(self) -> None:
        if self._file:
            raise ValueError(f"{self._file}: a single file of trajectories is only read")

    def _existing(self, step: int) -> Path:
        path = self._path(step)
        if not path.exists() or (self._file and step not in self._file_steps):
            kept = f"{self.steps[0]} to {self.steps[-1]}" if self.steps else "none"
            raise DataError(f"{self._file or self._folder}: no trajectories of step {step}; steps kept: {kept}")
        return path

    def _files(self) -> Iterator[tuple[int, Path]]:
        if self._file:
            yield from ((step, self._file) for step in self._file_steps)
            return
        for path in self._folder.glob("step-*.parquet"):
            if name := _NAME.fullmatch(path.name):
                yield int(name[1]), path


def _equal(wanted: Mapping[str, str | int | None]) -> dict[str, Bounds]:
    return {name: (value, value) for name, value in wanted.items() if value is not None}
