"""The critic of PPO: learns to predict returns. It is updated before the policy in each step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agentrl.algos.base import LossFunction
from agentrl.algos.losses.value import explained_share
from agentrl.backends.base import Backend
from agentrl.errors import ConfigError, Kind
from agentrl.trainer.learner import epoch_batches, means
from agentrl.trainer.protocols import Metrics, SaveModel
from agentrl.types.sample import Sample

FOLDER = "critic"


class Critic:
    """A value model and its training. The critic trains on every sample, also on samples that the policy loss omits.

    Args:
        mini_batch_groups, epochs, seed: see `Learner`.
    """

    def __init__(
        self,
        backend: Backend,
        loss: LossFunction,
        *,
        mini_batch_groups: int | None,
        epochs: int,
        seed: int,
    ) -> None:
        self.backend = backend
        self._loss = loss
        self._mini_batch_groups, self._epochs, self._seed = mini_batch_groups, epochs, seed

    async def __call__(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Run all updates of one step; return the means of their metrics as `critic/<name>`. `vf_loss` is the loss.

        `vf_explained_var` is the share of the returns' variance that the values explain. These values were computed
        before the updates; the advantages use the same values.
        """
        explained = await asyncio.to_thread(explained_share, samples)
        batches = epoch_batches(samples, self._mini_batch_groups, self._epochs, self._seed, step)
        updates = [(await self.backend.train_step(batch, self._loss)).metrics for batch in batches]
        named = [{"vf_loss" if name == "loss" else name: value for name, value in each.items()} for each in updates]
        return {
            **means(named, "critic"),
            "critic/updates": float(len(updates)),
            "critic/vf_explained_var": explained,
        }

    async def save(self, checkpoint: Path, save_model: SaveModel) -> None:
        """See `Checkpointable.save`."""
        await save_model(self.backend, checkpoint / FOLDER)

    async def load(self, checkpoint: Path) -> None:
        """See `Checkpointable.load`.

        Raises:
            ConfigError: the checkpoint has no critic, or its critic is damaged or belongs to another model.
        """
        if not (folder := checkpoint / FOLDER).is_dir():
            raise ConfigError.at(
                "trainer.default_local_dir",
                Kind.CONFLICT,
                f"cannot resume from '{checkpoint}': it has no critic, but this run trains one; start a new run"
                " with another trainer.default_local_dir, and that checkpoint as model.path",
            )
        await self.backend.load(folder)
