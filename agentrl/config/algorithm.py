"""`algorithm.*`: where advantages come from."""

from __future__ import annotations

from typing import Literal

from agentrl.config.base import Section


class AlgorithmConfig(Section):
    """Where advantages come from. `name` selects a preset; the keys below change parts of it."""

    name: Literal["grpo", "sft"] = "grpo"
    """grpo: group-relative policy optimisation over live rollouts. sft: imitation of saved conversations."""
    adv_estimator: Literal["grpo"] = "grpo"
    """How advantages are estimated."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide a group's centred rewards by their standard deviation."""
