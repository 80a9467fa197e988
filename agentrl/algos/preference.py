"""Losses of preferences: the better of two rollouts against the worse, and a whole group in its order.

Axes: P pairs, N rollouts, G groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.algos.members import rounding
from agentrl.algos.options import call, needing
from agentrl.errors import ConfigError
from agentrl.registry import Registry


@dataclass(frozen=True, slots=True)
class PairBatch:
    """What a preference loss reads: log-probabilities of rollouts, [P] each; the first two carry the gradient.

    They are sums over a rollout's trained tokens, or means where the caller divides by their number.
    """

    chosen_logps: Tensor
    rejected_logps: Tensor
    ref_chosen_logps: Tensor | None
    ref_rejected_logps: Tensor | None
    beta: float

    def log_ratios(self) -> tuple[Tensor, Tensor]:
        """log(policy / reference) of the chosen and of the rejected, [P] each.

        Raises:
            ConfigError: there is no reference.
        """
        if self.ref_chosen_logps is None or self.ref_rejected_logps is None:
            raise ConfigError("this preference loss compares with a reference policy, and its logps are None")
        return self.chosen_logps - self.ref_chosen_logps, self.rejected_logps - self.ref_rejected_logps


PairLoss = tuple[Tensor, Tensor, Tensor]
"""The loss of each pair, and the implicit rewards of its chosen and its rejected rollout, [P] each."""

PREFERENCE_LOSSES: Registry[Callable[..., PairLoss]] = Registry("preference loss")
"""name -> `function(PairBatch, **options) -> PairLoss`."""


def preference_loss(
    name: str,
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    *,
    ref_chosen_logps: Tensor | None = None,
    ref_rejected_logps: Tensor | None = None,
    beta: float,
    **options: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, metrics): the mean over pairs, [], and means of the metrics of `pair_losses`, [] and detached.

    Args and errors: as in `pair_losses`. No pair at all has loss 0.
    """
    losses, metrics = pair_losses(
        name,
        chosen_logps,
        rejected_logps,
        ref_chosen_logps=ref_chosen_logps,
        ref_rejected_logps=ref_rejected_logps,
        beta=beta,
        **options,
    )
    num_pairs = max(1, len(losses))
    return losses.sum() / num_pairs, {key: values.sum() / num_pairs for key, values in metrics.items()}


def pair_losses(
    name: str,
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    *,
    ref_chosen_logps: Tensor | None = None,
    ref_rejected_logps: Tensor | None = None,
    beta: float,
    **options: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(losses, metrics), [P] each, metrics detached.

    With l = log policy, d = (l - log reference) of the chosen less that of the rejected:

        pairwise   -log sigmoid(beta (l_chosen - l_rejected))     no reference
        dpo        -log sigmoid(beta d)                           Rafailov et al. 2023, arXiv:2305.18290
        ipo        (d - 1 / (2 beta))^2                           Azar et al. 2023, arXiv:2310.12036; beta is its tau

    Args:
        name: pairwise, dpo, ipo or one that is registered in `PREFERENCE_LOSSES`.
        chosen_logps, rejected_logps: [P] of the policy being trained: sums over trained tokens, or means.
        ref_chosen_logps, ref_rejected_logps: [P] of the reference, likewise; pairwise does not read them.
        beta: how strongly log-probabilities count.
        options: of pairwise and dpo: `label_smoothing` (0), the share of pairs taken to be the wrong way round.

    Metrics: `chosen_rewards` and `rejected_rewards`, beta (l - log reference), without the reference under pairwise;
    `margin`, their difference; `accuracy`, whether it is above 0.

    Raises:
        ConfigError: an option the loss does not take, or no reference where it needs one.
        UnknownNameError: no such loss.
    """
    batch = PairBatch(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta)
    losses, chosen, rejected = call(f"preference loss '{name}'", PREFERENCE_LOSSES.get(name), batch, options)
    margin = (chosen - rejected).detach()
    metrics = {"chosen_rewards": chosen.detach(), "rejected_rewards": rejected.detach(), "margin": margin}
    return losses, metrics | {"accuracy": (margin > 0).to(margin.dtype)}


@PREFERENCE_LOSSES.register("pairwise")
def pairwise(batch: PairBatch, *, label_smoothing: float = 0.0) -> PairLoss:
    """-log sigmoid(beta (l_chosen - l_rejected)) (Bradley and Terry 1952, on log-probabilities)."""
    return _logistic(batch.beta * batch.chosen_logps, batch.beta * batch.rejected_logps, label_smoothing)


@PREFERENCE_LOSSES.register("dpo")
@needing("ref_logprobs")
def dpo(batch: PairBatch, *, label_smoothing: float = 0.0) -> PairLoss:
    """-log sigmoid(beta d), equation 7 of the paper; smoothed as cDPO (Mitchell 2023, ericmitchell.ai/cdpo.pdf)."""
    chosen, rejected = batch.log_ratios()
    return _logistic(batch.beta * chosen, batch.beta * rejected, label_smoothing)


@PREFERENCE_LOSSES.register("ipo")
@needing("ref_logprobs")
def ipo(batch: PairBatch) -> PairLoss:
    """(d - 1 / (2 beta))^2, equation 17 of the paper."""
    chosen, rejected = batch.log_ratios()
    return (chosen - rejected - 1 / (2 * batch.beta)).square(), batch.beta * chosen, batch.beta * rejected


def _logistic(chosen: Tensor, rejected: Tensor, smoothing: float) -> PairLoss:
    margin = chosen - rejected
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin), chosen, rejected


def ranking_loss(logps: Tensor, scores: Tensor, groups: Tensor, *, beta: float) -> tuple[Tensor, dict[str, Tensor]]:
    """(losses, metrics), one a group with unequal scores, [G] each in the order of group numbers; metrics detached.

    Plackett-Luce (Plackett 1975, doi:10.2307/2346567) with ties: each rollout is to be the first of itself and all of
    lower score; the mean over the rollouts that have someone below them, l being log-probabilities:

        -log(exp(beta l_i) / (exp(beta l_i) + sum over j with r_j < r_i of exp(beta l_j)))

    Of two rollouts that is pairwise. Scores that differ by float32 rounding are equal.

    Args:
        logps: [N] of the policy being trained: sums over a rollout's trained tokens, or means.
        scores: [N] rewards.
        groups: [N] long; rollouts of one group have the same number.
        beta: how strongly log-probabilities count.

    Metrics: `accuracy`, share of the pairs of unequal score that the policy orders alike; `margin`, beta times the
    mean difference of their log-probabilities.
    """
    found = []
    for number in torch.unique(groups):
        rows = groups == number
        group = scores[rows]
        below = group[None, :] < group[:, None] - rounding(group)
        if below.any():
            found.append(_ranked(beta * logps[rows], below))
    if not found:
        empty = logps[:0]
        return empty, {"accuracy": empty.detach(), "margin": empty.detach()}
    losses, accuracy, margin = (torch.stack(each) for each in zip(*found, strict=True))
    return losses, {"accuracy": accuracy, "margin": margin}


def _ranked(values: Tensor, below: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, accuracy, margin of one group, [] each; `below`, [N, N]: whether the second scores less than the first."""
    others = torch.where(below, values[None, :], -torch.inf)
    denominators = torch.cat([values[:, None], others], dim=1).logsumexp(dim=1)
    differences = (values[:, None] - values[None, :]).detach()[below]
    losses = (denominators - values)[below.any(1)]
    return losses.mean(), (differences > 0).to(values.dtype).mean(), differences.mean()
