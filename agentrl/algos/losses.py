"""From log-probabilities and advantages to a loss: the door to every policy loss. Axes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algos.aggregation import aggregate, token_mean
from agentrl.algos.divergence import MAX_LOG_RATIO
from agentrl.algos.options import call
from agentrl.errors import ConfigError
from agentrl.registry import Registry


@dataclass(frozen=True, slots=True)
class LossBatch:
    """What a policy loss reads: all [B, T]; `logprobs` carries the gradient.

    `rollouts`, [B] long: rows of one rollout have the same number and are one sequence; None: every row is one.
    """

    logprobs: Tensor
    old_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    rollouts: Tensor | None = None

    def log_ratio(self) -> Tensor:
        """log(policy / old policy), [B, T], 0 off the mask.

        Raises:
            ConfigError: there are no old log-probabilities.
        """
        if self.old_logprobs is None:
            raise ConfigError("this policy loss compares with the policy that sampled, and old_logprobs is None")
        # where, not multiply: what stands off the mask may be infinite
        return torch.where(self.loss_mask.bool(), self.logprobs - self.old_logprobs, 0.0)

    def bounded_log_ratio(self) -> Tensor:
        """`log_ratio` cut to ±20, so that its exponential is finite; beyond that it has no gradient."""
        return self.log_ratio().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def rollout_means(self, values: Tensor) -> Tensor:
        """[B, 1]: the mean of `values`, [B, T], over the trained tokens of all rows of the row's rollout."""
        mask = self.loss_mask.bool()
        sums, counts = torch.where(mask, values, 0.0).sum(-1), mask.sum(-1).to(values.dtype)
        if self.rollouts is not None:
            _, of_row = torch.unique(self.rollouts, return_inverse=True)
            sums, counts = (torch.zeros_like(each).index_add(0, of_row, each)[of_row] for each in (sums, counts))
        return (sums / counts.clamp(min=1))[:, None]


TokenLoss = tuple[Tensor, dict[str, Tensor]]
"""The loss of each token, [B, T], and metrics of each token, [B, T]."""

POLICY_LOSSES: Registry[Callable[..., TokenLoss]] = Registry(
    "policy loss",
    {
        "vanilla": "agentrl.algos.vanilla:vanilla",
        "gspo": "agentrl.algos.gspo:gspo",
        "cispo": "agentrl.algos.cispo:cispo",
        "gmpo": "agentrl.algos.gmpo:gmpo",
        "sapo": "agentrl.algos.sapo:sapo",
        "clip_cov": "agentrl.algos.covariance:clip_cov",
        "kl_cov": "agentrl.algos.covariance:kl_cov",
        "dppo": "agentrl.algos.dppo:dppo",
        "dppo_tv": "agentrl.algos.dppo:dppo_tv",
        "dppo_kl": "agentrl.algos.dppo:dppo_kl",
        "dro": "agentrl.algos.dro:dro",
        "reinforce": "agentrl.algos.reinforce:reinforce",
        "gpg": "agentrl.algos.reinforce:reinforce",  # GPG differs in its advantages alone
        "sft": "agentrl.algos.sft:sft",
    },
    aliases={"geo_mean": "gmpo"},
)
"""name -> `function(LossBatch, **options) -> TokenLoss`."""


def policy_loss(
    name: str,
    logprobs: Tensor,
    old_logprobs: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    importance_weights: Tensor | None = None,
    rollouts: Tensor | None = None,
    aggregation: str = "token-mean",
    weights: Tensor | Sequence[float] | None = None,
    norm_length: int | None = None,
    denominator: float | None = None,
    **options: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, metrics): the loss, [], to be minimised, and means over trained tokens, [] and detached.

    Args:
        name: vanilla, gspo, cispo, gmpo, sapo, clip_cov, kl_cov, dppo (dppo_tv, dppo_kl), dro, reinforce, gpg, sft, or
            one that is registered in `POLICY_LOSSES`.
        logprobs: [B, T] of the policy being trained.
        old_logprobs: [B, T] of the policy that ratios are taken to; None where the loss takes none.
        advantages: [B, T].
        loss_mask: [B, T], true where a token is trained.
        importance_weights: [B, T], what the loss of each token is multiplied by, outside any clip; None: 1 each.
        rollouts: [B] long; rows with the same number are one sequence; None: every row is one.
        aggregation, weights, norm_length, denominator: as in `aggregate`.
        options: of the loss, with its defaults (docs/algorithms.md):

            vanilla    clip_ratio_low 0.2, clip_ratio_high 0.2, clip_ratio_c 3
            gspo       clip_ratio_low 3e-4, clip_ratio_high 4e-4
            cispo      clip_ratio_low 1, clip_ratio_high 4
            gmpo       clip_ratio_low 0.4, clip_ratio_high 0.4, of the logarithm of the ratio
            sapo       tau_pos 1, tau_neg 1.05
            clip_cov   clip_ratio_low 0.2, clip_ratio_high 0.2, clip_cov_ratio 2e-4, clip_cov_lb 1, clip_cov_ub 5
            kl_cov     kl_cov_ratio 2e-4, ppo_kl_coef 1
            dppo       divergence tv, clip_ratio_low and _high 0.15 (tv) or 0.05 (kl), clip_ratio_c 20
            dro        dro_beta 1

    Raises:
        ConfigError: an option the loss does not take, or old_logprobs missing where it needs them.
        UnknownNameError: no such loss.
    """
    batch = LossBatch(logprobs, old_logprobs, advantages, loss_mask, rollouts)
    losses, metrics = call(f"policy loss '{name}'", POLICY_LOSSES.get(name), batch, options)
    if importance_weights is not None:
        losses = losses * importance_weights
    loss = aggregate(
        aggregation,
        losses,
        loss_mask,
        weights=weights,
        rollout_ids=None if rollouts is None or weights is not None else [str(number) for number in rollouts.tolist()],
        norm_length=norm_length,
        denominator=denominator,
    )
    return loss, {key: token_mean(values, loss_mask) for key, values in metrics.items()}
