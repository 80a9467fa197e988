"""The algorithm: what it needs, how it credits tokens, what loss it takes. Pure; the same under every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from agentrl.attempt import Group
from agentrl.samples import Sample

if TYPE_CHECKING:
    from torch import Tensor

Need = Literal["old_logprobs", "ref_logprobs", "values"]
Scope = Literal["row", "rollout", "group", "batch"]
"""What a loss looks at together: one row at a time; all rows of a rollout, of a group, of the mini-batch."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A micro-batch as a loss reads it. B samples, T tokens, right-padded; index t belongs to the token at t.

    Attributes:
        logprobs: [B, T] of the policy being trained, with gradient; 0 off the mask.
        scalars: [B, T] of a value or reward model being trained, with gradient, likewise; such a model has no
            log-probabilities, `logprobs` and `entropy` are then 0.
        entropy: [B, T] of the same distribution, in nats; with gradient where the loss asks for it (`needs_entropy`).
        loss_mask: [B, T] bool.
        advantages, behaviour_logprobs, old_logprobs, ref_logprobs, importance_weights, policy_versions, values,
            returns: [B, T] or None, as in `Sample`.
        rollouts, groups: [B] long; rows of one rollout, or group, have the same number. None: every row is its own.
        weights: [B], what a token of this sample counts, from `algos.aggregation_weights` over the whole mini-batch.
        denominator: what the weighted sum is divided by, likewise over the whole mini-batch; so the losses of
            micro-batches add up to the loss of the mini-batch, however it is cut.
        num_groups: groups of the whole mini-batch; None: nothing is cut, and those that matter can be counted.
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
    """A loss over one micro-batch, and how its mini-batch is to be weighed.

    Attributes:
        aggregation: the name of an aggregation in `algos.aggregation`.
        norm_length: what `seq-mean-token-sum-norm` divides by.
        needs_entropy: whether the entropy must be computed with gradient.
        scope: what it looks at together; a backend gives it at least that much at once.
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
        """(loss, metrics): the micro-batch's share of the loss, and means over its trained tokens.

        A metric whose name ends in `/max` is the largest value of a token instead.
        """
        ...


class Algorithm(Protocol):
    """From groups to samples to a loss.

    Attributes:
        needs: which scores `credit` and the loss must find on the samples.
        loss: what the learner minimises.
    """

    @property
    def needs(self) -> frozenset[Need]: ...  # noqa: D102  # documented above
    @property
    def loss(self) -> LossFunction: ...  # noqa: D102

    def samples(self, groups: Sequence[Group]) -> list[Sample]:
        """One sample a trajectory that trains something, its advantages still 0."""
        ...

    def credit(self, groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
        """`samples` of these groups, scored as `needs` asks, with their advantages. Sees all groups of a step."""
        ...

    def correct(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
        """What the loss reads of the credited samples of a step: weighed, and without what is rejected; and metrics."""
        ...
