"""Saved progress of a run, to resume after a kill: checkpoints, or the stored steps if the run only samples."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from agentrl.backends.base import Backend
from agentrl.config.trainer import TrainerConfig
from agentrl.run_folder.checkpoints import (
    BEST,
    CHECKPOINTS,
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
    folder, synced to disk, then renamed. If a step is saved a second time, only its state file is written. Before a
    checkpoint is deleted, its folder is renamed. Temporary folders and links of a killed run are deleted when the run
    resumes.

    Args:
        folder: the folder of the checkpoints, with symbolic links resolved.
        start: the checkpoint to resume from, saved by this run or another run; None for a new run.
        num_kept: number of newest checkpoints to keep; the best one is always kept. None keeps all.
        kept: further components whose state is saved; the state of backend and source is always saved.
        in_background: `save` returns when the state is copied. The checkpoint appears when all its files are written.

    Attributes:
        best: the best saved step by the metric of `trainer.save_best`; None if there is none.
    """

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        source: Source,
        start: Path | None,
        num_kept: int | None,
        kept: Sequence[Checkpointable] = (),
        in_background: bool = False,
    ) -> None:
        self.best: Best | None = None
        self._folder = folder
        self._backend = backend
        self._source = source
        self._start = start
        self._num_kept = num_kept
        self._kept = kept
        self._in_background = in_background
        self._files: list[Future[None]] = []  # one future per model whose files are being written
        self._saving: asyncio.Task[None] | None = None

    @property
    def latest_step(self) -> int | None:
        """The step to resume from; None for a new run."""
        return read_state(self._start).step if self._start else None

    @property
    def goal(self) -> Best | None:
        """The value of the `trainer.stop_when` metric at the last validation up to `latest_step`."""
        return read_state(self._start).goal if self._start else None

    async def restore(self) -> None:
        """Restore the run from the checkpoint `start`, if there is one. Delete later checkpoints of this run."""
        if self._start is None:
            return
        state = read_state(self._start)
        await asyncio.to_thread(check_manifest, self._start)
        await self._backend.load(self._start)  # loaded first, so that a failure leaves the folder unchanged
        for part in self._kept:
            await part.load(self._start)
        self._source.position, self._source.pending = state.position, state.pending
        if self._start.parent == self._folder:
            self._put_in_order(state)

    async def save(self, step: int, best: Best | None = None, goal: Best | None = None) -> None:
        """Save the run after `step`. If `best` is given, this checkpoint is the best so far.

        If the caller is cancelled, the cancellation takes effect only after the save.
        """
        await self.finish()
        await _uncut(self._save(step, best, goal))

    def check(self) -> None:
        """See `Progress.check`."""
        if self._saving is not None and self._saving.done():
            self._saving.result()

    async def finish(self) -> None:
        """See `Progress.finish`. If the caller is cancelled, the save is still completed first."""
        if self._saving is not None:
            await _uncut(self._saving)

    async def _save(self, step: int, best: Best | None, goal: Best | None) -> None:
        self.best = best or self.best
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder)
        state = RunState(step, self._source.position, self.best, tuple(self._source.pending), goal)
        target = step_folder(self._folder, step)
        if is_complete(target):  # already saved: only the state file changes, because this step may now be the best
            write_atomically(target / STATE_FILE, _text(state))
            self._show(state)
            return
        aside = target.with_name(f".{target.name}.partial")
        with _removed_on_failure(aside):
            await self._write(aside)
        self._saving = asyncio.create_task(self._complete(aside, state))
        if not self._in_background:
            await self._saving

    async def _write(self, aside: Path) -> None:
        """Write all state that the next step may change. With `in_background`: copy it and start to write the copy."""
        self._files.clear()
        await self._save_model(self._backend, aside)
        for part in self._kept:
            await part.save(aside, self._save_model)

    async def _save_model(self, backend: Backend, folder: Path) -> None:
        if self._in_background:
            await asyncio.to_thread(folder.mkdir)
            self._files.append(await backend.begin_save(folder))
        else:
            await backend.save(folder)

    async def _complete(self, aside: Path, state: RunState) -> None:
        with _removed_on_failure(aside):
            await asyncio.to_thread(wait, self._files)  # wait for all files, because a failure removes the folder
            for files in self._files:
                files.result()
            await asyncio.to_thread(write_manifest, aside)
            write_atomically(aside / STATE_FILE, _text(state))
            await asyncio.to_thread(sync_tree, aside)
        await asyncio.to_thread(self._put_in_place, aside, state)

    def _put_in_place(self, aside: Path, state: RunState) -> None:
        target = step_folder(self._folder, state.step)
        if target.exists():  # the existing checkpoint is incomplete
            remove_folder(target)
        aside.rename(target)
        sync_folder(self._folder)
        sync_folder(self._folder.parent)
        self._show(state)

    def _show(self, state: RunState) -> None:
        self._link(state.step)
        self._remove_oldest()
        if state.best and state.best.step == state.step:
            print(f"best so far: {state.best}; saved as {CHECKPOINTS}/{BEST}")

    def _put_in_order(self, state: RunState) -> None:
        """Delete and relink checkpoints, so that the folder is as it was when step `state.step` was saved."""
        remove_leftovers(self._folder)
        later = [step for step in complete_steps(self._folder) if step > state.step]
        if later:
            names = ", ".join(f"step-{step}" for step in later)
            print(
                f"resuming at step-{state.step}: deleted later checkpoints ({names}) and the records of their steps;"
                " these steps run again"
            )
        for step in reversed(later):  # deleted before the records of these steps
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


def _text(state: RunState) -> str:
    return json.dumps(asdict(state))


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    """Remove `folder` if the block raises an exception. This frees space if the disk is full."""
    try:
        yield
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class SampledSteps:
    """Progress of a run that only samples: the last step whose rollouts are stored. This class saves nothing."""

    best: Best | None = None
    goal: Best | None = None

    def __init__(self, steps: Sequence[int], source: Source, tasks_per_step: int) -> None:
        self.latest_step = max(steps, default=None)
        self._source = source
        self._tasks_per_step = tasks_per_step

    async def save(self, step: int, best: Best | None = None, goal: Best | None = None) -> None:
        """Do nothing: no weights changed."""

    def check(self) -> None:
        """Do nothing: nothing is written in the background."""

    async def finish(self) -> None:
        """Do nothing: nothing is written in the background."""

    async def restore(self) -> None:
        """Set the position of the source to the first task after the stored steps."""
        self._source.position = (self.latest_step or 0) * self._tasks_per_step


def open_checkpoints(
    trainer: TrainerConfig, backend: Backend, source: Source, kept: Sequence[Checkpointable] = ()
) -> Checkpoints:
    """Open the checkpoints of a run; for `kept` see `Checkpoints`.

    Raises:
        ConfigError: the checkpoint to resume from is incomplete.
    """
    folder = checkpoints_of(trainer.run_dir)
    num_kept = trainer.max_checkpoints_to_keep
    return Checkpoints(folder, backend, source, start_of(trainer), num_kept, kept, trainer.async_save)


async def _uncut(work: Awaitable[R]) -> R:
    """Run `work` to its end even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception):  # an error of `work` must not replace the cancellation
            await task
        raise
