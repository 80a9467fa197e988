"""Where a run stands, kept so that it goes on after any kill: checkpoints, or the stored steps of one that samples."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from agentrl.backends.base import Backend
from agentrl.config.trainer import TrainerConfig
from agentrl.store.whole import sync_folder
from agentrl.trainer.checkpoint import (
    BEST,
    LATEST,
    STATE_FILE,
    RunState,
    checkpoints_of,
    is_whole,
    read_state,
    start_of,
    step_folder,
    whole_steps,
)
from agentrl.trainer.files import remove_leftovers, remove_whole, sync_tree, write_whole
from agentrl.trainer.parts import Best, Kept, Source

R = TypeVar("R")


class Checkpoints:
    """Saves and restores a run under `<run>/checkpoints/step-N/`, with links `latest` and `best` into it.

    A kill or a loss of power at any moment leaves only whole ones: a folder is written aside, put on the disk, then
    renamed; a step that is saved is never written again; one that is dropped is renamed aside first. What stands
    between, links included, is put in order when the run goes on.

    Args:
        folder: where they stand, links resolved.
        start: the checkpoint to go on from, of this run or another; None for a new run.
        num_kept: checkpoints to keep besides the best; None keeps all.
        kept: further parts, which know themselves what of them there is to save.

    Attributes:
        best: the best step that was saved so far.
    """

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        source: Source,
        start: Path | None,
        num_kept: int | None,
        kept: Sequence[Kept] = (),
    ) -> None:
        self.best: Best | None = None
        self._folder = folder
        self._backend = backend
        self._source = source
        self._start = start
        self._num_kept = num_kept
        self._kept = kept

    @property
    def latest_step(self) -> int | None:
        """The step to go on from; None where there is none."""
        return read_state(self._start).step if self._start else None

    async def restore(self) -> None:
        """Take up what the start holds, if there is one, and drop what came after it."""
        if self._start is None:
            return
        state = read_state(self._start)
        await self._backend.load(self._start)  # first: what cannot be read leaves the folder as it was
        for part in self._kept:
            await part.load(self._start)
        self._source.position, self._source.pending = state.position, state.pending
        if self._start.parent == self._folder:
            self._put_in_order(state)

    async def save(self, step: int, best: Best | None = None) -> None:
        """Save the run as it is after `step`; with `best`, as its best so far. Once begun it is not cut off."""
        await _uncut(self._save(step, best))

    async def _save(self, step: int, best: Best | None) -> None:
        self.best = best or self.best
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder)
        await self._write(RunState(step, self._source.position, self.best, tuple(self._source.pending)))
        self._link(step)
        self._remove_oldest()

    async def _write(self, state: RunState) -> None:
        target, text = step_folder(self._folder, state.step), json.dumps(asdict(state))
        if is_whole(target):  # gone on from and not a step further: it may be the best
            write_whole(target / STATE_FILE, text)
            return
        aside = target.with_name(f".{target.name}.partial")
        try:
            await self._backend.save(aside)
            for part in self._kept:
                await part.save(aside)
            write_whole(aside / STATE_FILE, text)
            await asyncio.to_thread(sync_tree, aside)
        except Exception:
            shutil.rmtree(aside, ignore_errors=True)  # a full disk needs the room
            raise
        if target.exists():  # and not whole
            remove_whole(target)
        aside.rename(target)
        sync_folder(self._folder)
        sync_folder(self._folder.parent)

    def _put_in_order(self, state: RunState) -> None:
        """Make the folder what it was when that step had been saved."""
        remove_leftovers(self._folder)
        later = [step for step in whole_steps(self._folder) if step > state.step]
        if later:
            names = ", ".join(f"step-{step}" for step in later)
            print(f"going back to step-{state.step}: dropped, to be done anew: {names}, and all records after it")
        for step in reversed(later):  # before the records: a kill in between leaves checkpoints whose records are there
            remove_whole(step_folder(self._folder, step))
        if (best := state.best) and not is_whole(step_folder(self._folder, best.step)):
            print(f"the best so far, {best}, is not kept any more: the best is looked for anew")
            best = None
        self.best = best
        self._link(state.step)
        self._remove_oldest()

    def _link(self, latest: int) -> None:
        self._point(LATEST, latest)
        if self.best:
            self._point(BEST, self.best.step)
        else:
            (self._folder / BEST).unlink(missing_ok=True)
        sync_folder(self._folder)

    def _point(self, name: str, step: int) -> None:
        link = self._folder / f".{name}.partial"
        link.symlink_to(step_folder(self._folder, step).name)
        link.replace(self._folder / name)

    def _remove_oldest(self) -> None:
        if self._num_kept is None:
            return
        linked = {(self._folder / name).resolve() for name in (LATEST, BEST)}
        for step in whole_steps(self._folder)[: -self._num_kept]:
            if (path := step_folder(self._folder, step)) not in linked:
                remove_whole(path)


class SampledSteps:
    """Where a run that only samples stands: after its last step whose rollouts are stored. It saves nothing itself."""

    best: Best | None = None

    def __init__(self, steps: Sequence[int], source: Source, tasks_per_step: int) -> None:
        self.latest_step = max(steps, default=None)
        self._source = source
        self._tasks_per_step = tasks_per_step

    async def save(self, step: int, best: Best | None = None) -> None:
        """There are no weights that changed."""

    async def restore(self) -> None:
        """Go on after the stored steps."""
        self._source.position = (self.latest_step or 0) * self._tasks_per_step


def open_checkpoints(
    trainer: TrainerConfig, backend: Backend, source: Source, kept: Sequence[Kept] = ()
) -> Checkpoints:
    """The checkpoints of a run; `kept` as in `Checkpoints`.

    Raises:
        ConfigError: what it is to go on from is not whole.
    """
    folder = checkpoints_of(trainer.run_dir)
    return Checkpoints(folder, backend, source, start_of(trainer), trainer.max_checkpoints_to_keep, kept)


async def _uncut(work: Coroutine[None, None, R]) -> R:
    """Do `work` to its end, also when the caller is cancelled meanwhile: that takes effect afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception):  # the cancellation is what ends the run
            await task
        raise
