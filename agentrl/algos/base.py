"""Protocol of an algorithm: required inputs, advantages and loss. Algorithms are pure functions, for any backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from agentrl.types.rollout import Group
from agentrl.types.sample import Sample

if TYPE_CHECKING:
    from torch import Tensor


Need = Literal["old_logprobs", "ref_logprobs", "values"]
Scope = Literal["row", "rollout", "group", "batch"]
"""Rows that one call of a loss needs: a single row, or all rows of a rollout, a group or the mini-batch."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A micro-batch: the input of a loss. B samples, T tokens, right-padded; index t belongs to token t.

    Attributes:
        logprobs: [B, T], log-probabilities under the trained policy, with gradient; 0 outside the mask.
        scalars: [B, T], outputs of the trained value or reward model, with gradient; 0 outside the mask. With
            scalars, `logprobs` and `entropy` are 0, because such a model has no log-probabilities.
        entropy: [B, T], entropy of the policy's distribution, in nats; with gradient if the loss sets `needs_entropy`.
        loss_mask: [B, T] bool.
        advantages, behaviour_logprobs, old_logprobs, ref_logprobs, importance_weights, policy_versions, values,
            returns: [B, T] or None, as in `Sample`.
        rollouts, groups: [B] long; rows of one rollout (or group) have the same number. None: each row is separate.
        weights: [B], the weight of each sample's tokens, from `algos.aggregation_weights` over the mini-batch.
        denominator: the divisor of the weighted sum of token losses, also computed over the mini-batch. So the losses
            of micro-batches add up to the loss of the mini-batch, for any split.
        num_groups: number of groups in the mini-batch. None: the batch is the complete mini-batch, and the loss counts
            its groups.
    """

    logprobs: Tensor
    entropy: Tensor
    loss_mask: Tensor
    advantages: Tensor
    behaviour_logprobs: Tensor | None
    old_logprobs: Tensor | None
    ref_logprobs: Tensor | None
    weights: Tensor
    denominator: float
    importance_weights: Tensor | None = None
    policy_versions: Tensor | None = None
    scalars: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    rollouts: Tensor | None = None
    groups: Tensor | None = None
    num_groups: int | None = None


class LossFunction(Protocol):
    """A loss of one micro-batch, and the weighting of tokens in its mini-batch.

    Attributes:
        aggregation: name of an aggregation mode; see `algos.aggregation_weights`.
        norm_length: divisor of the aggregation `seq-mean-token-sum-norm`.
        needs_entropy: whether the entropy must be computed with gradient.
        scope: rows that one call of the loss needs; a backend passes at least these rows.
    """

    @property
    def aggregation(self) -> str: ...  # noqa: D102  # documented above
    @property
    def norm_length(self) -> int | None: ...  # noqa: D102
    @property
    def needs_entropy(self) -> bool: ...  # noqa: D102
    @property
    def scope(self) -> Scope: ...  # noqa: D102

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (loss, metrics): the micro-batch's part of the loss, and means over the micro-batch's trained tokens.

        A metric whose name ends in `/max` is the maximum over tokens instead.
        """
        ...


class Algorithm(Protocol):
    """Converts groups to samples with advantages, and has a loss.

    Attributes:
        needs: log-probabilities and values that the samples must have before `credit` and the loss are called.
        loss: the loss that training minimises.
    """

    @property
    def needs(self) -> frozenset[Need]: ...  # noqa: D102  # documented above
    @property
    def loss(self) -> LossFunction: ...  # noqa: D102

    def samples(self, groups: Sequence[Group]) -> list[Sample]:
        """Make one sample for each trajectory with trained tokens; all advantages are 0."""
        ...

    def credit(self, groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
        """Return `samples` with advantages.

        `samples` must have the fields in `needs`; `groups` are all groups of a step.
        """
        ...

    def correct(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
        """Apply the off-policy correction; return (samples for the loss, metrics).

        The samples get importance weights. Rejected tokens are removed from the loss mask.
        """
        ...


@dataclass(frozen=True)
class AroundLoss:
    """Base class of loss wrappers: uses the aggregation and scope of the inner `loss`."""

    loss: LossFunction

    @property
    def aggregation(self) -> str:
        """Aggregation of the inner loss."""
        return self.loss.aggregation

    @property
    def norm_length(self) -> int | None:
        """Norm length of the inner loss."""
        return self.loss.norm_length

    @property
    def needs_entropy(self) -> bool:
        """Whether the inner loss needs the entropy."""
        return self.loss.needs_entropy

    @property
    def scope(self) -> Scope:
        """Scope of the inner loss."""
        return self.loss.scope
