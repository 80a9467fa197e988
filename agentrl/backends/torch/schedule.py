"""The learning rate as a function of the update."""

from __future__ import annotations

import math

from agentrl.config.actor import OptimConfig


def learning_rate_scale(config: OptimConfig, update: int, total_updates: int) -> float:
    """What the peak learning rate is multiplied by at `update`, counted from 0.

    Warm-up: (update + 1) / W with W = lr_warmup_steps or lr_warmup_steps_ratio total_updates, so that the first update
    already moves and the last of the warm-up has the peak. After it, with p from 0 to 1 over what is left of
    `total_updates` and m = min_lr_ratio:

        constant  1        linear  m + (1 - m) (1 - p)        cosine  m + (1 - m) (1 + cos(pi p)) / 2
    """
    warmup = config.lr_warmup_steps or int(config.lr_warmup_steps_ratio * total_updates)
    if update < warmup:
        return (update + 1) / warmup
    progress = min(1.0, (update - warmup) / max(1, total_updates - warmup))
    shapes = {"constant": 1.0, "linear": 1.0 - progress, "cosine": (1.0 + math.cos(math.pi * progress)) / 2}
    floor = config.min_lr_ratio
    return floor + (1.0 - floor) * shapes[config.lr_scheduler_type]
