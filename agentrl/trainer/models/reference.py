"""The reference policy: a separate model that may copy the policy's weights every few steps (iterative RL)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.backends.base import Backend
from agentrl.trainer.protocols import Metrics, SaveModel
from agentrl.types.sample import Sample

FOLDER = "reference"


class Reference:
    """A reference that copies the policy every `sync_steps` steps, as in DeepSeekMath (arXiv:2402.03300), 4.1.4.

    If `sync_steps` is None, the reference never changes. Once the reference has changed, checkpoints save it in the
    folder `reference`.
    """

    def __init__(self, backend: Backend, policy: Backend, sync_steps: int | None) -> None:
        self._backend = backend
        self._policy = policy
        self._sync_steps = sync_steps
        self._moved = False

    async def __call__(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Copy the policy's weights to the reference in every `sync_steps`-th step. Return no metrics."""
        if self._sync_steps and (step + 1) % self._sync_steps == 0:
            await self._backend.copy_weights(self._policy.weights())
            self._moved = True
        return {}

    async def save(self, checkpoint: Path, save_model: SaveModel) -> None:
        """See `Checkpointable.save`."""
        if self._moved:
            await save_model(self._backend, checkpoint / FOLDER)

    async def load(self, checkpoint: Path) -> None:
        """See `Checkpointable.load`.

        Raises:
            ConfigError: the saved reference is incomplete or belongs to another model.
        """
        if (checkpoint / FOLDER).is_dir():
            await self._backend.load(checkpoint / FOLDER)
            self._moved = True
