"""Algorithms as pure functions: advantages, policy losses, KL estimators and aggregations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.algos.advantages import estimate_advantages
    from agentrl.algos.aggregation import aggregate, aggregation_weights
    from agentrl.algos.build import build_algorithm
    from agentrl.algos.divergence import kl
    from agentrl.algos.losses import policy_loss

_HOMES = {
    "estimate_advantages": "advantages",
    "aggregate": "aggregation",
    "aggregation_weights": "aggregation",
    "build_algorithm": "build",
    "kl": "divergence",
    "policy_loss": "losses",
}
__all__ = ["aggregate", "aggregation_weights", "build_algorithm", "estimate_advantages", "kl", "policy_loss"]


def __getattr__(name: str) -> object:
    # torch is imported with the first function that needs it, not with the package
    if name in _HOMES:
        return getattr(import_module(f"agentrl.algos.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'agentrl.algos' has no attribute '{name}'")
