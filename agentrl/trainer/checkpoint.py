"""Checkpoints of a whole run: weights and optimizer by the backend, step and data position beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from agentrl.backends.base import Backend
from agentrl.errors import ConfigError
from agentrl.trainer.parts import Source

STATE_FILE = "run_state.json"
LATEST = "latest"


class Checkpoints:
    """Saves and restores a run under `<run>/checkpoints/step-N/`, with a link `latest` to the newest.

    A folder is written aside and renamed when it is whole, so a kill at any moment leaves only whole ones.
    """

    def __init__(self, folder: Path, backend: Backend, source: Source) -> None:
        self._folder = folder
        self._backend = backend
        self._source = source

    async def save(self, step: int) -> Path:
        """Save the run as it is after `step`."""
        target = self._folder / f"step-{step}"
        aside = self._folder / f".step-{step}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        await self._backend.save(aside)
        state = {"step": step, "position": self._source.position}
        (aside / STATE_FILE).write_text(json.dumps(state))
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
        self._point_latest_to(target)
        return target

    async def restore(self) -> int:
        """Go on from the latest checkpoint; the step it was saved after."""
        state = self._state()
        await self._backend.load((self._folder / LATEST).resolve())
        self._source.position = state["position"]
        return state["step"]

    @property
    def latest_step(self) -> int | None:
        """The step after which the latest was saved; None where there is none to go on from."""
        return self._state()["step"] if (self._folder / LATEST).exists() else None

    def _state(self) -> dict[str, int]:
        file = self._folder / LATEST / STATE_FILE
        try:
            state: dict[str, int] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot go on from '{file.parent}': {error}") from None
        return state

    def _point_latest_to(self, target: Path) -> None:
        link = self._folder / f".{LATEST}.partial"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        link.replace(self._folder / LATEST)
