"""Open saved rollouts: of a run, of the validation at a checkpoint, of a folder of rollout files, or of one file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.errors import DataError, suggestion
from agentrl.replay.run_paths import runs_near, split_place
from agentrl.run_folder.checkpoints import CHECKPOINTS
from agentrl.run_folder.location import run_at
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.store.schema import CONFIG, EXCLUDED_SPLIT, IMPORTED_FROM, MADE_BY, TRAJECTORIES
from agentrl.store.text import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agentrl.replay.tokenizer import SavedTokenizer

SPLITS = ("train", "val")
_CHECKPOINT = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class SavedRun:
    """Saved rollouts and their provenance. Reading rollouts never executes code that the run's configuration names.

    Attributes:
        name: name of the rollouts in tables: the path as the user wrote it.
        folder: the run's folder; None if the rollouts are outside a run's folder.
        steps: the selected steps, ascending; at least one.
    """

    name: str
    folder: Path | None
    store: TrajectoryStore
    split: str
    steps: Sequence[int]
    _tokenizers: dict[str | None, SavedTokenizer] = field(default_factory=dict, repr=False, compare=False)

    def rollouts(self, columns: Collection[str] | None = None) -> Iterator[StoredRollout]:
        """All rollouts, step by step; `columns` as in `TrajectoryStore.scan`."""
        return self.store.scan(steps=self.steps, columns=columns)

    def dropped(self, columns: Collection[str] | None = None) -> Iterator[StoredRollout]:
        """The rollouts of groups that no step trained on (`trainer.save_excluded`); empty for validation rollouts."""
        if self.folder is None or self.split != "train":
            return iter(())
        steps = None if list(self.steps) == self.store.steps else self.steps
        store = TrajectoryStore(self.folder / TRAJECTORIES / EXCLUDED_SPLIT)
        return store.scan(steps=steps, columns=columns)

    def groups(self, columns: Collection[str] | None = None) -> Iterator[list[StoredRollout]]:
        """The rollouts of each group, in the order in which they were saved."""
        groups = groupby(self.rollouts(columns), key=lambda stored: (stored.step, stored.task.uid))
        return (list(members) for _, members in groups)

    @cached_property
    def provenances(self) -> Mapping[int, Mapping[str, str]]:
        """Step -> provenance of the step's file (`run_folder.provenance`)."""
        return {step: self.store.provenance(step) for step in self.steps}

    @cached_property
    def provenance(self) -> Mapping[str, str]:
        """Provenance of the first file. The other files are not opened: if one is corrupt, an audit can still run."""
        return self.store.provenance(self.steps[0])

    @cached_property
    def config(self) -> Mapping[str, JsonValue]:
        """The configuration of the run, as plain values; empty if it was not saved.

        Raises:
            DataError: the saved configuration is not a JSON object.
        """
        try:
            config = read_json(self.provenance.get(CONFIG, "{}"))
        except ValueError as error:
            raise DataError(f"'{self.name}': the saved configuration is not JSON: {error}") from None
        if not isinstance(config, dict):
            raise DataError(f"'{self.name}': the saved configuration is not a JSON object")
        return config

    @property
    def description(self) -> str:
        """Short description of these rollouts."""
        first, last = self.steps[0], self.steps[-1]
        steps = f"step {first}" if first == last else f"{len(self.steps)} steps, {first} to {last}"
        source = self.provenance.get(IMPORTED_FROM)
        made = f"imported from {source}" if source else f"made by agentrl {self.provenance.get(MADE_BY, 'unknown')}"
        return f"{self.split}, {steps}; {made}"

    def tokenizer(self, override: str | None = None) -> PreTrainedTokenizerBase:
        """The tokenizer that the rollouts were made with. Code that ships with a tokenizer is never executed.

        Args:
            override: folder or name of a tokenizer to use instead of the run's own tokenizer.

        Raises:
            ConfigError: no tokenizer is found; or there is no `override`, and the tokenizer that is found differs from
                the rollouts' tokenizer.
        """
        return self._saved_tokenizer(override).tokenizer

    def tokenizer_note(self, override: str | None = None) -> str:
        """Note about `tokenizer(override)`; empty if this tokenizer is known to be the rollouts' own."""
        return self._saved_tokenizer(override).note

    def _saved_tokenizer(self, override: str | None) -> SavedTokenizer:
        if override not in self._tokenizers:
            from agentrl.replay.tokenizer import load_saved_tokenizer  # imports torch and transformers

            loaded = load_saved_tokenizer(self.name, self.folder, self.config, self.provenances, override)
            self._tokenizers[override] = loaded
        return self._tokenizers[override]


def open_saved(where: str, split: str | None = None) -> SavedRun:
    """Open the rollouts at `PATH` or `PATH@STEP`; STEP is a number, `first` or `last`.

    Args:
        where: a run's folder, a checkpoint (for the validation rollouts of its step), a folder of files, or a file.
        split: `train` or `val`; by default `train` if it exists.

    Raises:
        DataError: no rollouts are found. The message lists the searched places, or the existing steps and splits.
    """
    name, step = split_place(where)
    path = run_at(Path(name))
    if checkpoint := _checkpoint_step(path):
        return _of_checkpoint(where, path.resolve(), checkpoint, split, step)
    stores = _stores(path)
    if not stores and (path / "config.json").is_file():
        raise DataError(
            f"'{name}' is a model, not rollouts: sample rollouts first with `agentrl generate model.path={name}`"
        )
    if not stores:
        raise DataError(
            f"'{name}' contains no trajectories: expected {TRAJECTORIES}/train, {TRAJECTORIES}/val or step-*.parquet"
            f"{runs_near(path)}"
        )
    chosen = split or next(iter(stores))
    if chosen not in stores:
        raise DataError(f"'{name}' has no rollouts of split '{chosen}': use --split {' or '.join(stores)}")
    store = stores[chosen]
    return SavedRun(where, _run_folder(path.resolve()), store, chosen, _chosen(store.steps, step, where))


def _run_folder(path: Path) -> Path | None:
    """The run's folder that contains these trajectories, if there is one."""
    inside = (parent.parent for parent in (path, *path.parents) if parent.name == TRAJECTORIES)
    return path if (path / TRAJECTORIES).is_dir() else next(inside, None)


def _stores(path: Path) -> dict[str, TrajectoryStore]:
    """Split -> store, for each store at `path`."""
    if path.is_file():
        return _by_split(TrajectoryStore.of_file(path))
    for folder in (path / TRAJECTORIES, path):
        stores = {name: TrajectoryStore(folder / name) for name in SPLITS}
        if found := {name: store for name, store in stores.items() if store.steps}:
            return found
    return _by_split(TrajectoryStore(path))


def _by_split(store: TrajectoryStore) -> dict[str, TrajectoryStore]:
    """Return {split: store}. The split is read from the first row, because the folder can have any name."""
    if not store.steps:
        return {}
    first = next(store.scan(steps=store.steps[:1], columns=[]), None)
    return {"train" if first is None else first.split: store}


def _checkpoint_step(path: Path) -> int | None:
    """The step of a checkpoint folder, or of a link to a checkpoint; None for any other path."""
    folder = path.resolve()
    name = _CHECKPOINT.fullmatch(folder.name)
    return int(name[1]) if name and folder.is_dir() and folder.parent.name == CHECKPOINTS else None


def _of_checkpoint(where: str, path: Path, checkpoint: int, split: str | None, step: str) -> SavedRun:
    run = path.parent.parent
    if step or split == "train":
        raise DataError(f"'{where}': a checkpoint has only validation rollouts; for others, name the run '{run}'")
    store = TrajectoryStore(run / TRAJECTORIES / "val")
    if checkpoint not in store.steps:
        steps = ", ".join(map(str, store.steps)) or "none"
        raise DataError(f"'{where}': the run has no validation at step {checkpoint}; steps with validation: {steps}")
    return SavedRun(where, run, store, "val", [checkpoint])


def _chosen(steps: Sequence[int], step: str, where: str) -> Sequence[int]:
    if not step:
        return steps
    named = {"first": steps[0], "last": steps[-1], **{str(number): number for number in steps}}
    if step not in named:
        hint = f"saved steps: {steps[0]} to {steps[-1]}" if step.isdecimal() else suggestion(step, ("first", "last"))
        raise DataError(f"'{where}': there is no step '{step}'; {hint}")
    return [named[step]]
