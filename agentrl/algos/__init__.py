"""Algorithms as pure functions: advantages, losses, KL estimators and aggregations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.algos.advantages.registry import estimate_advantages
    from agentrl.algos.build import build_algorithm
    from agentrl.algos.kl_divergence import kl
    from agentrl.algos.kl_reward import AdaptiveKL, FixedKL
    from agentrl.algos.losses.aggregation import aggregate, aggregation_weights
    from agentrl.algos.losses.registry import policy_loss
    from agentrl.algos.losses.value import explained_variance, value_loss
    from agentrl.algos.preference.losses import preference_loss, ranking_loss

_HOMES = {
    "AdaptiveKL": "kl_reward",
    "FixedKL": "kl_reward",
    "aggregate": "losses.aggregation",
    "aggregation_weights": "losses.aggregation",
    "build_algorithm": "build",
    "estimate_advantages": "advantages.registry",
    "explained_variance": "losses.value",
    "kl": "kl_divergence",
    "policy_loss": "losses.registry",
    "preference_loss": "preference.losses",
    "ranking_loss": "preference.losses",
    "value_loss": "losses.value",
}
__all__ = [
    "AdaptiveKL",
    "FixedKL",
    "aggregate",
    "aggregation_weights",
    "build_algorithm",
    "estimate_advantages",
    "explained_variance",
    "kl",
    "policy_loss",
    "preference_loss",
    "ranking_loss",
    "value_loss",
]


def __getattr__(name: str) -> object:
    # lazy import: torch is loaded only when one of these functions is used
    if name in _HOMES:
        return getattr(import_module(f"agentrl.algos.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'agentrl.algos' has no attribute '{name}'")
