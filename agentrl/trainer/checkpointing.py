"""Progress of a run, for resuming after any kill: checkpoints, or the stored steps of a run that only samples."""

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
from agentrl.run_folder.checkpoints import (
    BEST,
    LATEST,
    STATE_FILE,
    Best,
    RunState,
    checkpoints_of,
    complete_steps,
    is_complete,
    read_state,
    start_of,
    step_folder,
)
from agentrl.run_folder.files import remove_folder, remove_leftovers, sync_tree, write_atomically
from agentrl.run_folder.manifest import check_manifest, write_manifest
from agentrl.trainer.protocols import Checkpointable, Source
from agentrl.utils.atomic_files import sync_folder

R = TypeVar("R")


class Checkpoints:
    """Saves and restores a run under `<run>/checkpoints/step-N/`, with symbolic links `latest` and `best`.

    A kill or power loss at any moment leaves only complete checkpoints. Each checkpoint is written to a temporary
    folder, synced to disk, then renamed. A saved step is never written again. A checkpoint is renamed before it is
    deleted.
    Leftover folders and links are cleaned up when the run resumes.

    Args:
        folder: the folder of the checkpoints, with symbolic links resolved.
        start: the checkpoint to resume from, of this run or another; None for a new run.
        num_kept: number of checkpoints to keep besides the best; None keeps all.
        kept: other components; each saves its own state.

    Attributes:
        best: the best step saved so far.
    """

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        source: Source,
        start: Path | None,
        num_kept: int | None,
        kept: Sequence[Checkpointable] = (),
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
        """The step to resume from; None for a new run."""
        return read_state(self._start).step if self._start else None

    @property
    def goal(self) -> Best | None:
        """The value of the `trainer.stop_when` metric at the last validation before `latest_step`."""
        return read_state(self._start).goal if self._start else None

    async def restore(self) -> None:
        """Restore the start checkpoint, if any, and delete later checkpoints of this run."""
        if self._start is None:
            return
        state = read_state(self._start)
        await asyncio.to_thread(check_manifest, self._start)
        await self._backend.load(self._start)  # first, so that failure leaves the folder unchanged
        for part in self._kept:
            await part.load(self._start)
        self._source.position, self._source.pending = state.position, state.pending
        if self._start.parent == self._folder:
            self._put_in_order(state)

    async def save(self, step: int, best: Best | None = None, goal: Best | None = None) -> None:
        """Save the run after `step`. If `best` is given, this checkpoint is the best so far.

        A cancellation takes effect only after the checkpoint is saved.
        """
        await _uncut(self._save(step, best, goal))

    async def _save(self, step: int, best: Best | None, goal: Best | None) -> None:
        self.best = best or self.best
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder)
        await self._write(RunState(step, self._source.position, self.best, tuple(self._source.pending), goal))
        self._link(step)
        self._remove_oldest()

    async def _write(self, state: RunState) -> None:
        target, text = step_folder(self._folder, state.step), json.dumps(asdict(state))
        if is_complete(target):  # already saved: only update its state, because it may now be the best
            write_atomically(target / STATE_FILE, text)
            return
        aside = target.with_name(f".{target.name}.partial")
        try:
            await self._backend.save(aside)
            for part in self._kept:
                await part.save(aside)
            await asyncio.to_thread(write_manifest, aside)
            write_atomically(aside / STATE_FILE, text)
            await asyncio.to_thread(sync_tree, aside)
        except Exception:
            shutil.rmtree(aside, ignore_errors=True)  # free the space if the disk is full
            raise
        if target.exists():  # an incomplete checkpoint
            remove_folder(target)
        aside.rename(target)
        sync_folder(self._folder)
        sync_folder(self._folder.parent)

    def _put_in_order(self, state: RunState) -> None:
        """Restore the folder to its state when step `state.step` was saved."""
        remove_leftovers(self._folder)
        later = [step for step in complete_steps(self._folder) if step > state.step]
        if later:
            names = ", ".join(f"step-{step}" for step in later)
            print(
                f"resuming at step-{state.step}: deleted later checkpoints ({names}) and records; their steps run again"
            )
        for step in reversed(later):  # before the records, so that no checkpoint loses its records
            remove_folder(step_folder(self._folder, step))
        if (best := state.best) and not is_complete(step_folder(self._folder, best.step)):
            print(f"the best checkpoint ({best}) was deleted: the next validation sets a new best")
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
        for step in complete_steps(self._folder)[: -self._num_kept]:
            if (path := step_folder(self._folder, step)) not in linked:
                remove_folder(path)


class SampledSteps:
    """Progress of a run that only samples: the last step whose rollouts are stored. It saves nothing itself."""

    best: Best | None = None
    goal: Best | None = None

    def __init__(self, steps: Sequence[int], source: Source, tasks_per_step: int) -> None:
        self.latest_step = max(steps, default=None)
        self._source = source
        self._tasks_per_step = tasks_per_step

    async def save(self, step: int, best: Best | None = None, goal: Best | None = None) -> None:
        """Do nothing: no weights changed."""

    async def restore(self) -> None:
        """Resume after the stored steps."""
        self._source.position = (self.latest_step or 0) * self._tasks_per_step


def open_checkpoints(
    trainer: TrainerConfig, backend: Backend, source: Source, kept: Sequence[Checkpointable] = ()
) -> Checkpoints:
    """Open the checkpoints of a run; for `kept` see `Checkpoints`.

    Raises:
        ConfigError: the checkpoint to resume from is incomplete.
    """
    folder = checkpoints_of(trainer.run_dir)
    return Checkpoints(folder, backend, source, start_of(trainer), trainer.max_checkpoints_to_keep, kept)


async def _uncut(work: Coroutine[None, None, R]) -> R:
    """Run `work` to its end even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception):  # an error of `work` must not replace the cancellation
            await task
        raise
