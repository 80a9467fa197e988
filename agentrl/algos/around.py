"""What a loss has in common with the loss that it is built around."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.algos.base import LossFunction, Scope


@dataclass(frozen=True)
class AroundLoss:
    """To be subclassed: a loss that is weighed and cut as `loss` is."""

    loss: LossFunction

    @property
    def aggregation(self) -> str:
        """Of the loss."""
        return self.loss.aggregation

    @property
    def norm_length(self) -> int | None:
        """Of the loss."""
        return self.loss.norm_length

    @property
    def needs_entropy(self) -> bool:
        """Of the loss."""
        return self.loss.needs_entropy

    @property
    def scope(self) -> Scope:
        """Of the loss."""
        return self.loss.scope
