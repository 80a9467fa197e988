"""Policy and value losses, one module each."""

from agentrl.algos.losses.registry import POLICY_LOSSES, LossBatch, TokenLoss, policy_loss

__all__ = ["POLICY_LOSSES", "LossBatch", "TokenLoss", "policy_loss"]
