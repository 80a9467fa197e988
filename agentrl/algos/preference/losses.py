"""Preference losses: pairs of a better and a worse rollout, or a ranking of the group.

Axes: P pairs, N rollouts, G groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.algos.advantages.members import rounding
from agentrl.algos.options import call, with_needs
from agentrl.algos.user_functions import wrong_tensors
from agentrl.errors import ConfigError
from agentrl.registry import Registry


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Input of a preference loss: log-probabilities of rollouts, [P] each.

    Log-probabilities under the reference have no gradient. Each log-probability is a sum over a rollout's trained
    tokens, or a mean if the caller divides by their number.
    """

    chosen_logps: Tensor
    rejected_logps: Tensor
    ref_chosen_logps: Tensor | None
    ref_rejected_logps: Tensor | None
    beta: float

    def log_ratios(self) -> tuple[Tensor, Tensor]:
        """log(policy / reference) of the chosen and of the rejected rollouts, [P] each.

        Raises:
            ConfigError: the reference log-probabilities are missing.
        """
        if self.ref_chosen_logps is None or self.ref_rejected_logps is None:
            raise ConfigError.keyless("this preference loss needs the logps of a reference policy, but they are None")
        return self.chosen_logps - self.ref_chosen_logps, self.rejected_logps - self.ref_rejected_logps


PairLoss = tuple[Tensor, Tensor, Tensor]
"""Loss of each pair, and the implicit rewards of its chosen and its rejected rollout, [P] each."""

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
    """Return (loss, metrics): the mean over pairs, [], and means of the metrics of `pair_losses`, [] and detached.

    Args and errors: as in `pair_losses`. Without pairs the loss is 0.
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
    """Return (losses, metrics), [P] each, metrics detached.

    With l = log policy, and d = (l - log reference) of the chosen minus (l - log reference) of the rejected rollout:

        pairwise   -log sigmoid(beta (l_chosen - l_rejected))     no reference
        dpo        -log sigmoid(beta d)                           Rafailov et al. 2023, arXiv:2305.18290
        ipo        (d - 1 / (2 beta))^2                           Azar et al. 2023, arXiv:2310.12036; beta is IPO's tau

    Args:
        name: pairwise, dpo, ipo or a loss registered in `PREFERENCE_LOSSES`.
        chosen_logps, rejected_logps: [P], under the trained policy: sums over trained tokens, or means.
        ref_chosen_logps, ref_rejected_logps: [P], under the reference, also sums or means; not used by pairwise.
        beta: scale of the log-probabilities.
        options: for pairwise and dpo: `label_smoothing` (0), the assumed share of pairs with swapped labels.

    Metrics: `chosen_rewards` and `rejected_rewards`, beta (l - log reference), or beta l for pairwise; `margin`, their
    difference; `accuracy`, whether the margin is above 0.

    Raises:
        ConfigError: the loss has no such option, or it needs a reference and there is none.
        UnknownNameError: there is no such loss.
    """
    batch = PairBatch(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta)
    names = ("losses", "chosen rewards", "rejected rewards")
    check = partial(wrong_tensors, names=names, shape=chosen_logps.shape)
    losses, chosen, rejected = call(f"preference loss '{name}'", PREFERENCE_LOSSES.get(name), batch, options, check)
    margin = (chosen - rejected).detach()
    metrics = {"chosen_rewards": chosen.detach(), "rejected_rewards": rejected.detach(), "margin": margin}
    return losses, metrics | {"accuracy": (margin > 0).to(margin.dtype)}


@PREFERENCE_LOSSES.register("pairwise")
def pairwise(batch: PairBatch, *, label_smoothing: float = 0.0) -> PairLoss:
    """-log sigmoid(beta (l_chosen - l_rejected)), see `pair_losses` (Bradley and Terry 1952, on log-probabilities)."""
    return _logistic(batch.beta * batch.chosen_logps, batch.beta * batch.rejected_logps, label_smoothing)


@PREFERENCE_LOSSES.register("dpo")
@with_needs("ref_logprobs")
def dpo(batch: PairBatch, *, label_smoothing: float = 0.0) -> PairLoss:
    """-log sigmoid(beta d), see `pair_losses`; smoothed as in cDPO (Mitchell 2023, ericmitchell.ai/cdpo.pdf).

    Equation 7 of arXiv:2305.18290.
    """
    chosen, rejected = batch.log_ratios()
    return _logistic(batch.beta * chosen, batch.beta * rejected, label_smoothing)


@PREFERENCE_LOSSES.register("ipo")
@with_needs("ref_logprobs")
def ipo(batch: PairBatch) -> PairLoss:
    """(d - 1 / (2 beta))^2, see `pair_losses`; equation 17 of arXiv:2310.12036."""
    chosen, rejected = batch.log_ratios()
    return (chosen - rejected - 1 / (2 * batch.beta)).square(), batch.beta * chosen, batch.beta * rejected


def _logistic(chosen: Tensor, rejected: Tensor, smoothing: float) -> PairLoss:
    margin = chosen - rejected
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin), chosen, rejected


def ranking_loss(logps: Tensor, scores: Tensor, groups: Tensor, *, beta: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (losses, metrics), one per group with unequal scores, [G], ordered by group number; metrics detached.

    Plackett-Luce (Plackett 1975, doi:10.2307/2346567) with ties: each rollout i should rank above all rollouts of lower
    score. The loss is the mean of the following term over all rollouts i that score higher than another rollout (l:
    log-probabilities, r: scores):

        -log(exp(beta l_i) / (exp(beta l_i) + sum over j with r_j < r_i of exp(beta l_j)))

    For two rollouts, the loss equals `pairwise`. Scores that differ only by float32 rounding count as equal.

    Args:
        logps: [N], under the trained policy: sums over a rollout's trained tokens, or means.
        scores: [N] rewards.
        groups: [N] long; rollouts of one group have the same number.
        beta: scale of the log-probabilities.

    Metrics over the pairs with unequal scores: `accuracy`, share of pairs that the policy orders correctly; `margin`,
    beta times the mean difference of the log-probabilities.
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
    """Loss, accuracy, margin of one group, [] each. `below`[i, j]: whether rollout j scores less than rollout i."""
    others = torch.where(below, values[None, :], -torch.inf)
    denominators = torch.cat([values[:, None], others], dim=1).logsumexp(dim=1)
    differences = (values[:, None] - values[None, :]).detach()[below]
    losses = (denominators - values)[below.any(1)]
    return losses.mean(), (differences > 0).to(values.dtype).mean(), differences.mean()
