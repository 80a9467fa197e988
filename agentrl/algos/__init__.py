"""Algorithms as pure functions: advantages, losses, KL estimators and aggregations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.algos.advantages import estimate_advantages
    from agentrl.algos.aggregation import aggregate, aggregation_weights
    from agentrl.algos.build import build_algorithm
    from agentrl.algos.divergence import kl
    from agentrl.algos.kl_control import AdaptiveKL, FixedKL
    from agentrl.algos.losses import policy_loss
    from agentrl.algos.preference import preference_loss, ranking_loss
    from agentrl.algos.value import explained_variance, value_loss

_HOMES = {
    "AdaptiveKL": "kl_control",
    "FixedKL": "kl_control",
    "aggregate": "aggregation",
    "aggregation_weights": "aggregation",
    "build_algorithm": "build",
    "estimate_advantages": "advantages",
    "explained_variance": "value",
    "kl": "divergence",
    "policy_loss": "losses",
    "preference_loss": "preference",
    "ranking_loss": "preference",
    "value_loss": "value",
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
    # torch is imported with the first function that needs it, not with the package
    if name in _HOMES:
        return getattr(import_module(f"agentrl.algos.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'agentrl.algos' has no attribute '{name}'")
