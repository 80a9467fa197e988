"""Adaptive coefficient of the KL penalty in the reward, updated each step from the measured KL."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from agentrl.algos.kl_reward import KLReward
from agentrl.run_folder.checkpoints import load_state
from agentrl.run_folder.files import write_atomically
from agentrl.trainer.protocols import Metrics, SaveModel
from agentrl.types.sample import Sample

FILE = "kl_control.json"


class KLFeedback:
    """Sets the coefficient for the next step from the KL measured in this step. Checkpoints save the coefficient."""

    def __init__(self, reward: KLReward) -> None:
        self._reward = reward

    async def __call__(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Update the coefficient.

        Return `kl/reward_coef`, the coefficient of this step, and `kl/reward_mean` (see `mean_kl`).
        """
        return await asyncio.to_thread(self._update, samples)

    async def save(self, checkpoint: Path, save_model: SaveModel) -> None:
        """See `Checkpointable.save`."""
        write_atomically(checkpoint / FILE, json.dumps({"value": self._reward.control.value}))

    async def load(self, checkpoint: Path) -> None:
        """See `Checkpointable.load`.

        Raises:
            ConfigError: the file cannot be read.
        """

        def take(kept: Mapping[str, float]) -> None:
            self._reward.control.value = float(kept["value"])

        load_state(checkpoint / FILE, take)

    def _update(self, samples: Sequence[Sample]) -> Metrics:
        metrics = {"kl/reward_coef": self._reward.control.value}
        if samples:
            mean, num_rollouts = mean_kl(self._reward, samples)
            self._reward.control.update(mean, num_rollouts)
            metrics["kl/reward_mean"] = mean
        return metrics


def mean_kl(reward: KLReward, samples: Sequence[Sample]) -> tuple[float, int]:
    """Return the mean KL in nats (mean over rollouts of the mean over trained tokens) and the number of rollouts.

    Example: rollout A has two trained tokens of KL 1 and 3. Rollout B has six trained tokens of KL 0 in two
    trajectories. The mean is (2 + 0) / 2 = 1.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    num_tokens: defaultdict[str, int] = defaultdict(int)
    for sample in samples:
        sums[sample.rollout_id] += sum(reward.divergence(sample))
        num_tokens[sample.rollout_id] += sample.num_trained_tokens
    return fmean(sums[each] / num_tokens[each] for each in sums), len(sums)
