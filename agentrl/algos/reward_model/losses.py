"""Losses of reward models: preferences between two conversations, and labels of conversations or turns.

Axes: B samples, T tokens, P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, mse_loss

from agentrl.algos.base import Scope, TokenBatch
from agentrl.algos.losses.aggregation import aggregate, token_mean


def bradley_terry(chosen: Tensor, rejected: Tensor, *, center_rewards_coefficient: float = 0.0) -> Tensor:
    """[P]: -log sigmoid(chosen - rejected), plus c (chosen + rejected)^2.

    The first term is the negative log-likelihood of the preference (Bradley & Terry 1952; Ouyang et al. 2022,
    arXiv:2203.02155), which depends only on the difference of the scores. The second term keeps scores near 0
    (Eisenstein et al. 2023, arXiv:2312.09244).

    Args:
        chosen, rejected: [P], scores.
    """
    return -logsigmoid(chosen - rejected) + center_rewards_coefficient * (chosen + rejected).square()


def outcome_loss(name: str, scores: Tensor, labels: Tensor) -> Tensor:
    """Loss of each score; all arguments and the result have the same shape.

    bce: the score is the logit of a probability (Cobbe et al. 2021, arXiv:2110.14168; for steps: Lightman et al. 2023,
    arXiv:2305.20050). mse: squared error.
    """
    return _OUTCOME_LOSSES[name](scores, labels, reduction="none")


_OUTCOME_LOSSES: Mapping[str, Callable[..., Tensor]] = {"bce": binary_cross_entropy_with_logits, "mse": mse_loss}


@dataclass(frozen=True)
class PairRewardLoss:
    """Mean of `bradley_terry` over pairs. Each group is a pair of conversations.

    The chosen conversation has advantage 1, the rejected one -1. The score of each sample is read at one token.
    """

    center_rewards_coefficient: float = 0.0
    aggregation: str = "token-mean"
    norm_length: int | None = None
    needs_entropy: bool = False
    scope: Scope = "group"

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`."""
        if batch.scalars is None or batch.groups is None:
            raise ValueError("this loss needs a scalar head and complete groups")
        scores_B = torch.where(batch.loss_mask, batch.scalars, 0.0).sum(-1)
        chosen_P, rejected_P = (scores_B[places] for places in pairs_of(batch))
        losses_P = bradley_terry(chosen_P, rejected_P, center_rewards_coefficient=self.center_rewards_coefficient)
        with torch.no_grad():
            margin_P = chosen_P - rejected_P
            metrics = {
                "accuracy": (margin_P > 0).to(margin_P.dtype).mean(),
                "margin": margin_P.mean(),
                "score_mean": scores_B.mean(),
            }
        # the denominator counts two trained tokens per pair of the mini-batch, so losses of micro-batches add up
        return losses_P.sum() * 2 / batch.denominator, metrics


def pairs_of(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Rows of the chosen and of the rejected conversations, [P] each, in the order of their groups.

    Raises:
        ValueError: a group does not have exactly one chosen and one rejected conversation.
    """
    assert batch.groups is not None
    signs_B = batch.advantages.sum(-1).sign()
    sides = [(signs_B == sign).nonzero()[:, 0] for sign in (1, -1)]
    chosen, rejected = (rows[batch.groups[rows].argsort(stable=True)] for rows in sides)
    if not torch.equal(batch.groups[chosen], batch.groups[rejected]):
        raise ValueError("every group must have one chosen and one rejected conversation")
    return chosen, rejected


@dataclass(frozen=True)
class OutcomeLoss:
    """Mean of `outcome_loss` over the tokens at which scores are read, with `returns` as labels."""

    name: str = "bce"
    aggregation: str = "token-mean"
    norm_length: int | None = None
    needs_entropy: bool = False
    scope: Scope = "row"

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`."""
        if batch.scalars is None or batch.returns is None:
            raise ValueError("this loss needs a scalar head and samples with returns")
        loss = aggregate(
            self.aggregation,
            outcome_loss(self.name, batch.scalars, batch.returns),
            batch.loss_mask,
            weights=batch.weights,
            denominator=batch.denominator,
        )
        scores = batch.scalars.detach()
        metrics = {
            "score_mean": token_mean(scores, batch.loss_mask),
            "label_mean": token_mean(batch.returns, batch.loss_mask),
        }
        if self.name == "bce":
            right = (scores > 0) == (batch.returns >= 0.5)
            metrics["accuracy"] = token_mean(right.to(scores.dtype), batch.loss_mask)
        return loss, metrics
