"""Advantage estimators, one module each."""

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.registry import ADVANTAGE_ESTIMATORS, estimate_advantages

__all__ = ["ADVANTAGE_ESTIMATORS", "AdvantageBatch", "estimate_advantages", "find_members"]
