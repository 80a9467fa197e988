"""Checkpoints of a whole run: weights and optimizer by the backend, step, data position and best step beside them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from agentrl.backends.base import Backend
from agentrl.errors import ConfigError
from agentrl.trainer.files import write_whole
from agentrl.trainer.parts import Best, Source

CHECKPOINTS, STATE_FILE = "checkpoints", "run_state.json"
LATEST, BEST = "latest", "best"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands: the step it is after, how many tasks it took, and its best step so far."""

    step: int
    position: int
    best: Best | None = None


class Checkpoints:
    """Saves and restores a run under `<run>/checkpoints/step-N/`, with links `latest` and `best` into it.

    A folder is written aside and renamed when it is whole, so a kill at any moment leaves only whole ones.

    Attributes:
        best: the best step that was saved so far.
    """

    def __init__(self, folder: Path, backend: Backend, source: Source) -> None:
        self.best: Best | None = None
        self._folder = folder.resolve()
        self._backend = backend
        self._source = source

    async def save(self, step: int, best: Best | None = None) -> None:
        """Save the run as it is after `step`; with `best`, as its best so far. Once begun it is not cut off."""
        await _uncut(self._save(step, best))

    async def restore(self) -> int:
        """Go on from the latest checkpoint; the step it was saved after."""
        state = read_state(self._folder / LATEST)
        await self._backend.load((self._folder / LATEST).resolve())
        self._source.position, self.best = state.position, state.best
        return state.step

    @property
    def latest_step(self) -> int | None:
        """The step after which the latest was saved; None where there is none to go on from."""
        return read_state(self._folder / LATEST).step if has_latest(self._folder) else None

    async def _save(self, step: int, best: Best | None) -> None:
        self.best = best or self.best
        target = self._folder / f"step-{step}"
        await self._write(RunState(step, self._source.position, self.best), target)
        if best:
            self._link(BEST, target)  # first: a run that is killed in between goes on from before, and links it again
        self._link(LATEST, target)

    async def _write(self, state: RunState, target: Path) -> None:
        text = json.dumps(asdict(state))
        if target == (self._folder / LATEST).resolve():  # gone on from and not a step further: it may be the best
            write_whole(target / STATE_FILE, text)
            return
        aside = target.with_name(f".{target.name}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        try:
            await self._backend.save(aside)
            write_whole(aside / STATE_FILE, text)
        except Exception:
            shutil.rmtree(aside, ignore_errors=True)  # a full disk needs the room
            raise
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)

    def _link(self, name: str, target: Path) -> None:
        link = self._folder / f".{name}.partial"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        link.replace(self._folder / name)


class SampledSteps:
    """Where a run that only samples stands: after its last step whose rollouts are stored. It saves nothing itself."""

    best: Best | None = None

    def __init__(self, steps: Sequence[int], source: Source, tasks_per_step: int) -> None:
        self.latest_step = max(steps, default=None)
        self._source = source
        self._tasks_per_step = tasks_per_step

    async def save(self, step: int, best: Best | None = None) -> None:
        """There are no weights that changed."""

    async def restore(self) -> int:
        """Go on after the stored steps."""
        step = self.latest_step or 0
        self._source.position = step * self._tasks_per_step
        return step


def read_state(checkpoint: Path) -> RunState:
    """Where the run stood when that checkpoint was saved.

    Raises:
        ConfigError: it is not a whole checkpoint of a run.
    """
    try:
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        best = state.get("best")
        return RunState(state["step"], state["position"], Best(**best) if best else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"cannot go on from '{checkpoint}': {STATE_FILE}: {' '.join(str(error).split())}; point the link"
            f" '{checkpoint.name}' to a whole step, or give the run another folder (trainer.default_local_dir)"
        ) from None


def has_latest(checkpoints: Path) -> bool:
    """Whether a run may go on from `latest` there.

    Raises:
        ConfigError: it leads nowhere, or steps are saved and it is not there: to begin anew would drop their records.
    """
    latest = checkpoints / LATEST
    if latest.exists():
        return True
    steps = sorted((file.parent.name for file in checkpoints.glob(f"step-*/{STATE_FILE}")), key=_number)
    if not steps and not latest.is_symlink():
        return False
    wrong = f"leads to '{latest.readlink()}', which is gone" if latest.is_symlink() else "is not there"
    remedy = f"point it to one of {', '.join(steps)}" if steps else "put that step back"
    raise ConfigError(
        f"cannot go on: the link '{latest}' {wrong}; {remedy}, or give the run another folder"
        " (trainer.default_local_dir)"
    )


def _number(step: str) -> tuple[int, str]:
    """The key that sorts `step-10` after `step-9`."""
    return len(step), step


def read_best(run_dir: Path) -> Best | None:
    """The best step of the run in that folder, where it kept one (`trainer.save_best`)."""
    link = run_dir / CHECKPOINTS / BEST
    return read_state(link).best if link.exists() else None


async def _uncut(work: Coroutine[None, None, R]) -> R:
    """Do `work` to its end, also when the caller is cancelled meanwhile: that takes effect afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception):  # the cancellation is what ends the run
            await task
        raise
