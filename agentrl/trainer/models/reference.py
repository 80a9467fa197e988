"""The reference policy: a separate model that may copy the policy's weights every few steps (iterative RL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from torch import nn

from agentrl.backends.base import Backend
from agentrl.engines.weights_in_place import load_in_place
from agentrl.trainer.protocols import Metrics
from agentrl.types.sample import Sample

FOLDER = "reference"


class Follower(Protocol):
    """A backend whose weights can be replaced."""

    async def change(self, work: Callable[[nn.Module], None]) -> None:
        """Let `work` change the model between two backend calls."""
        ...

    async def save(self, path: Path) -> None:
        """See `Backend.save`."""
        ...

    async def load(self, path: Path) -> None:
        """See `Backend.load`."""
        ...


class Reference:
    """A reference that copies the policy every `sync_steps` steps, as in DeepSeekMath (arXiv:2402.03300), 4.1.4.

    If `sync_steps` is None, it never changes. Checkpoints contain it in the folder `reference` after its first change.
    """

    def __init__(self, backend: Follower, policy: Backend, sync_steps: int | None) -> None:
        self._backend = backend
        self._policy = policy
        self._sync_steps = sync_steps
        self._moved = False

    async def __call__(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Copy the policy's weights to the reference if it is due."""
        if self._sync_steps and (step + 1) % self._sync_steps == 0:
            await self._backend.change(partial(load_in_place, weights=self._policy.weights()))
            self._moved = True
        return {}

    async def save(self, checkpoint: Path) -> None:
        """See `Checkpointable.save`."""
        if self._moved:
            await self._backend.save(checkpoint / FOLDER)

    async def load(self, checkpoint: Path) -> None:
        """See `Checkpointable.load`.

        Raises:
            ConfigError: the saved reference is incomplete or of another model.
        """
        if (checkpoint / FOLDER).is_dir():
            await self._backend.load(checkpoint / FOLDER)
            self._moved = True
