"""Parameters of a simulated run."""

from __future__ import annotations

import math
from dataclasses import dataclass

ENOUGH = 4096
"""Approximate number of rollouts over which averages are taken."""
MAX_STEPS = 32


@dataclass(frozen=True, slots=True)
class Setting:
    """Parameters of a simulated run.

    Attributes:
        max_running: largest number of requests computed together in a replica.
        max_kv_tokens: largest number of tokens in the KV cache of a replica.
        max_concurrent: largest number of rollouts that run together.
        publish_s: seconds in which the replicas stop for new weights.
        other_s: seconds of a step that the trainer needs for other work, such as storing and logging.
        recompute: whether the KV cache is computed again after new weights (`rollout.weight_update_mode=retract`).
        shares_prompts: whether training computes equal prompts of a task once.
        contention, exclusive: see `Machine`.
    """

    groups_per_step: int
    group_size: int
    max_staleness: int = 0
    over_sampling: float = 0.0
    num_replicas: int = 1
    max_running: int = 256
    max_kv_tokens: float = math.inf
    max_concurrent: int = 1 << 20
    publish_s: float = 0.0
    other_s: float = 0.0
    recompute: bool = True
    shares_prompts: bool = False
    contention: tuple[float, float] = (1.0, 1.0)
    exclusive: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether rollouts run during updates, so that steps depend on each other."""
        return bool(self.max_staleness or self.over_sampling)

    @property
    def num_steps(self) -> int:
        """Number of simulated steps to average, without the warm-up: about `ENOUGH` rollouts in total.

        The number is at most `MAX_STEPS`, and at least 2 if rollouts overlap updates.
        """
        least = 2 if self.overlaps else 1
        return max(least, min(MAX_STEPS, ENOUGH // (self.groups_per_step * self.group_size)))

    @property
    def warm_up(self) -> int:
        """Number of first steps that are excluded from averages.

        With overlap, the first steps are not typical, because no update runs during their rollouts. Without overlap, no
        step is excluded.
        """
        return 1 + self.max_staleness if self.overlaps else 0
