"""The trajectory store: saves rollouts step by step and searches them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.errors import DataError
from agentrl.store.encode import batches
from agentrl.store.files import (
    matching_rollouts,
    open_file,
    read_experts_hash,
    read_provenance,
    steps_of,
    write_batches,
)
from agentrl.store.filters import Bounds, Query, leaves
from agentrl.store.media import media_folder, read_media, write_media
from agentrl.store.routed_experts import experts_path, read_experts, remove_orphans, write_experts
from agentrl.store.stored import StoredRollout
from agentrl.store.text import writable
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Outcome, Stop
from agentrl.types.sample import Sample
from agentrl.utils.atomic_files import atomic_file, remove_parts

_NAME = re.compile(r"step-(\d{6,})\.parquet")


class TrajectoryStore:
    """Store of rollouts in `<folder>/step-000012.parquet`, one file per step and one row per rollout.

    Routed experts are saved in a second file per step, images in the run's folder `media`. Reading never unpickles or
    executes the content of a file. Only one store may write to a folder; other stores may read it at the same time.

    Args:
        folder: folder of the files of this split; created by the first write.
        split: `train`, `val` or `excluded`; saved in each row.
        provenance: facts about the run that readers need, such as the tokenizer hash; saved in each file.
    """

    def __init__(self, folder: Path, *, split: str = "train", provenance: Mapping[str, str] = {}) -> None:
        self._folder = folder
        self._split = split
        self._provenance = dict(provenance)
        self._file: Path | None = None  # set by `of_file`
        self._file_steps: Collection[int] = ()

    @classmethod
    def of_file(cls, path: Path) -> TrajectoryStore:
        """Open one file as a read-only store. The file may have any name and hold any number of steps.

        Raises:
            DataError: the file cannot be read, or holds no rollouts.
        """
        store = cls(path.parent)
        store._file, store._file_steps = path, steps_of(path)
        return store

    def write(
        self,
        step: int,
        groups: Sequence[Group],
        samples: Sequence[Sample] = (),
        excluded: Mapping[str, Excluded] = {},
    ) -> Path:
        """Save the rollouts of `step` and return the path of the file. An existing file of this step is replaced.

        A group without rollouts is not saved. Advantages and `Scores` (saved as float32) come from `samples`, which
        must be in the order of the trajectories in `groups`.

        Args:
            excluded: rollout id (`uid/number`) -> why the rollout was not trained on. For rollouts that are not listed,
                `Rollout.excluded` is saved.

        Raises:
            DataError: a value cannot be saved; the message names the field, and its task or step.
            ValueError: a sample belongs to no trajectory.
        """
        self._check_writable()
        path = self._path(step)
        self._folder.mkdir(parents=True, exist_ok=True)
        # images and experts first, so that no rollout is saved without them
        write_media(media_folder(self._folder), groups)
        experts_hash = write_experts(path, groups)
        with atomic_file(path) as file:
            write_batches(file, batches(step, self._split, groups, samples, excluded), self._provenance, experts_hash)
        if experts_hash is None:
            experts_path(path).unlink(missing_ok=True)
        return path

    @property
    def steps(self) -> list[int]:
        """The saved steps, ascending."""
        return sorted(step for step, _ in self._files())

    def file(self, step: int) -> Path:
        """Return the file that holds `step`; raise `DataError` if the step is not saved."""
        return self._existing(step)

    def groups(self, step: int) -> list[Group]:
        """Return the groups that were saved for `step`, in order. Only this method reads routed experts.

        Raises:
            DataError: the step is not saved, or the file cannot be read.
        """
        groups: list[Group] = []
        for stored in matching_rollouts(self._existing(step), self._of_step(Query(), step), None):
            if stored.number == 0:
                groups.append(Group(stored.task, []))
            groups[-1].rollouts.append(stored.rollout)
        if experts_hash := read_experts_hash(self._existing(step)):
            read_experts(self._existing(step), experts_hash, groups)
        return groups

    def provenance(self, step: int) -> dict[str, str]:
        """Return the provenance saved with `step`."""
        with open_file(self._existing(step)) as file:
            return read_provenance(file)

    def media(self, name: str) -> bytes:
        """Return the image with the content hash `name`. Segments and messages refer to images by this hash.

        Raises:
            DataError: the image is missing or damaged.
        """
        return read_media(media_folder(self._folder), name)

    def truncate(self, after_step: int) -> None:
        """Delete the steps after `after_step`, and incomplete files of a killed writer."""
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
        """Yield the rollouts that match all filters, in the order in which they were written. Files are read lazily.

        Args:
            steps: steps to read; steps that are not saved are skipped.
            min_reward: minimum `reward`, inclusive.
            max_reward: maximum `reward`, inclusive.
            tool: only rollouts that called this tool.
            outcome: only rollouts with a tool call of this outcome; with `tool`, this call must be a call of that tool.
            columns: columns to read, all by default. A name is a column of the schema, or `trajectories.` and a field
                of a trajectory, such as `trajectories.messages`. Fields that are not read have default values: an
                empty prompt, no tool calls, trajectories without segments.

        Raises:
            UnknownNameError: a column does not exist.
            DataError: a file cannot be read; raised during iteration.
        """
        row = {"uid": uid and writable(uid), "data_source": data_source and writable(data_source), "stop": stop}
        call = {"name": tool and writable(tool), "outcome": outcome}
        reward = {} if min_reward is None and max_reward is None else {"reward": (min_reward, max_reward)}
        query = Query({**_equal(row), **reward}, _equal(call))
        return self._scan([step for step in self.steps if steps is None or step in steps], query, leaves(columns))

    def rollout(self, step: int, uid: str, number: int) -> StoredRollout:
        """Return rollout `number` of group `uid`.

        Raises:
            DataError: the rollout does not exist, or the file cannot be read.
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
        """If `of_file` opened this store, add a filter on the step, because the file may hold several steps."""
        return replace(query, rollout={**query.rollout, **_equal({"step": step})}) if self._file else query

    def _path(self, step: int) -> Path:
        return self._file or self._folder / f"step-{step:06d}.parquet"

    def _check_writable(self) -> None:
        if self._file:
            raise ValueError(f"{self._file}: a single file of trajectories is read-only")

    def _existing(self, step: int) -> Path:
        path = self._path(step)
        if not path.exists() or (self._file and step not in self._file_steps):
            steps = f"{self.steps[0]} to {self.steps[-1]}" if self.steps else "none"
            raise DataError(f"{self._file or self._folder}: no trajectories of step {step}; saved steps: {steps}")
        return path

    def _files(self) -> Iterator[tuple[int, Path]]:
        if self._file:
            yield from ((step, self._file) for step in self._file_steps)
            return
        for path in self._folder.glob("step-*.parquet"):
            if name := _NAME.fullmatch(path.name):
                yield int(name[1]), path


def _equal(values: Mapping[str, str | int | None]) -> dict[str, Bounds]:
    return {name: (value, value) for name, value in values.items() if value is not None}
