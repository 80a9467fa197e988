"""The coefficient of a KL in the reward, which follows the KL that is measured, step by step."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from agentrl.algos.kl_reward import KLReward
from agentrl.samples import Sample
from agentrl.trainer.checkpoint import recall
from agentrl.trainer.files import write_whole
from agentrl.trainer.parts import Learn, Metrics

FILE = "kl_control.json"


class KLFeedback:
    """Measures the KL of each step that was credited, and updates the coefficient for the next.

    A checkpoint holds the coefficient.
    """

    def __init__(self, reward: KLReward) -> None:
        self._reward = reward

    def beside(self, learn: Learn) -> Learn:
        """`learn`, and `kl/reward_coef`, with which the step was credited, and `kl/reward_mean`, see `mean_kl`."""

        async def learned(samples: Sequence[Sample], step: int) -> Metrics:
            return {**await asyncio.to_thread(self._update, samples), **await learn(samples, step)}

        return learned

    async def save(self, checkpoint: Path) -> None:
        """See `Kept.save`."""
        write_whole(checkpoint / FILE, json.dumps({"value": self._reward.control.value}))

    async def load(self, checkpoint: Path) -> None:
        """See `Kept.load`.

        Raises:
            ConfigError: its file cannot be read.
        """

        def take(kept: Mapping[str, float]) -> None:
            self._reward.control.value = float(kept["value"])

        recall(checkpoint / FILE, take)

    def _update(self, samples: Sequence[Sample]) -> Metrics:
        metrics = {"kl/reward_coef": self._reward.control.value}
        if samples:
            mean, num_rollouts = mean_kl(self._reward, samples)
            self._reward.control.update(mean, num_rollouts)
            metrics["kl/reward_mean"] = mean
        return metrics


def mean_kl(reward: KLReward, samples: Sequence[Sample]) -> tuple[float, int]:
    """The mean over rollouts of the mean over their trained tokens, in nats; and how many rollouts there are.

    Two rollouts, of KL 1, 3 and of KL 0 in two trajectories with 2 and 4 tokens trained: (2 + 0) / 2 = 1.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    num_tokens: defaultdict[str, int] = defaultdict(int)
    for sample in samples:
        sums[sample.rollout_id] += sum(reward.divergence(sample))
        num_tokens[sample.rollout_id] += sample.num_trained_tokens
    return fmean(sums[each] / num_tokens[each] for each in sums), len(sums)
