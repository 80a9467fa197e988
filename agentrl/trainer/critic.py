"""The critic of PPO: learns what returns to expect, before the policy learns from what it expected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agentrl.algos.base import LossFunction
from agentrl.algos.critic_loss import explained_share
from agentrl.backends.base import Backend
from agentrl.errors import ConfigError
from agentrl.samples import Sample
from agentrl.trainer.learner import deal, means
from agentrl.trainer.parts import Learn, Metrics

FOLDER = "critic"


class Critic:
    """A value model and how it is trained. It sees every sample of a step, also what the policy's loss leaves out.

    Args:
        mini_batch_groups, epochs, seed: as for the `Learner`.
        warmup: steps that train the critic alone.
    """

    def __init__(
        self,
        backend: Backend,
        loss: LossFunction,
        *,
        mini_batch_groups: int | None,
        epochs: int,
        seed: int,
        warmup: int = 0,
    ) -> None:
        self.backend = backend
        self._loss = loss
        self._mini_batch_groups, self._epochs, self._seed = mini_batch_groups, epochs, seed
        self._warmup = warmup

    async def __call__(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Take all updates of one step: `critic/<name>`, means over them; `vf_loss` is the loss.

        `vf_explained_var` is the share of the returns' variance that the values explain with which the step was
        credited: those before its updates.
        """
        explained = await asyncio.to_thread(explained_share, samples)
        batches = deal(samples, self._mini_batch_groups, self._epochs, self._seed, step)
        updates = [(await self.backend.train_step(batch, self._loss)).metrics for batch in batches]
        named = [{"vf_loss" if name == "loss" else name: value for name, value in each.items()} for each in updates]
        return {
            **means(named, "critic"),
            "critic/updates": float(len(updates)),
            "critic/vf_explained_var": explained,
        }

    async def save(self, checkpoint: Path) -> None:
        """See `Kept.save`."""
        await self.backend.save(checkpoint / FOLDER)

    async def load(self, checkpoint: Path) -> None:
        """See `Kept.load`.

        Raises:
            ConfigError: there is none, or it is torn, or of another model.
        """
        if not (folder := checkpoint / FOLDER).is_dir():
            raise ConfigError(
                f"cannot go on from '{checkpoint}': it holds no critic, and this run trains one; begin anew in another"
                " trainer.default_local_dir, with that checkpoint as model.path"
            )
        await self.backend.load(folder)

    def before(self, learn: Learn) -> Learn:
        """Learning of the critic and then, after the warm-up, of the policy: `learn`."""

        async def learn_both(samples: Sequence[Sample], step: int) -> Metrics:
            metrics = await self(samples, step)
            return metrics if step < self._warmup else metrics | await learn(samples, step)

        return learn_both
