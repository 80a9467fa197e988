"""Loss functions for a backend: a registered policy loss, and a wrapper that adds KL and entropy terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from agentrl.algos.base import AroundLoss, Scope, TokenBatch
from agentrl.algos.kl_divergence import kl
from agentrl.algos.losses.aggregation import aggregate, token_mean
from agentrl.algos.losses.registry import POLICY_LOSSES, policy_loss
from agentrl.algos.options import scope_of
from agentrl.errors import ConfigError, Kind


@dataclass(frozen=True)
class PolicyLoss:
    """A registered policy loss, selected by name.

    The ratios of the loss are trained policy / behaviour policy, so they also correct differences between engine and
    backend. If `decoupled`, the ratios are trained policy / old policy, where the old policy (`old_logprobs`) is the
    policy at the start of the step (Hilton et al. 2021, arXiv:2110.00641). In this case clipping bounds the change of
    the policy within the step, and `importance_weights` (old policy / behaviour policy) correct for the policy's change
    before the step.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)  # each loss defines the types of its options
    aggregation: str = "token-mean"
    norm_length: int | None = None
    decoupled: bool = False
    needs_entropy: bool = False

    @property
    def scope(self) -> Scope:
        """Rows that one call of the loss needs."""
        return scope_of(POLICY_LOSSES.get(self.name))

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`."""
        loss, metrics = policy_loss(
            self.name,
            batch.logprobs,
            batch.old_logprobs if self.decoupled else batch.behaviour_logprobs,
            batch.advantages,
            batch.loss_mask,
            importance_weights=batch.importance_weights,
            rollouts=batch.rollouts,
            aggregation=self.aggregation,
            weights=batch.weights,
            denominator=batch.denominator,
            **self.options,
        )
        return loss, metrics | {"entropy": token_mean(batch.entropy, batch.loss_mask)}


@dataclass(frozen=True)
class PenalisedLoss(AroundLoss):
    """A loss plus `kl_coef` (if set) times the KL to the reference, minus `entropy_coef` times the entropy."""

    kl_kind: str = "low_var_kl"
    kl_coef: float | None = None
    entropy_coef: float = 0.0

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss or the entropy term needs the entropy."""
        return self.entropy_coef > 0 or self.loss.needs_entropy

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`."""
        loss, metrics = self.loss(batch)
        for name, coefficient, values in self._terms(batch):
            term = aggregate(
                self.aggregation, values, batch.loss_mask, weights=batch.weights, denominator=batch.denominator
            )
            loss = loss + coefficient * term
            metrics = metrics | {name: token_mean(values, batch.loss_mask)}
        return loss, metrics

    def _terms(self, batch: TokenBatch) -> Iterator[tuple[str, float, Tensor]]:
        if self.kl_coef is not None:
            if batch.ref_logprobs is None:
                raise ConfigError.at(
                    "actor.use_kl_loss",
                    Kind.MISSING,
                    "actor.use_kl_loss needs ref_logprobs on every sample, but there are none",
                )
            yield "kl_loss", self.kl_coef, kl(self.kl_kind, batch.logprobs, batch.ref_logprobs)
        if self.entropy_coef:
            yield "entropy", -self.entropy_coef, batch.entropy
