"""Compute any registered policy loss from log-probabilities and advantages. Axes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from agentrl.algos.kl_divergence import MAX_LOG_RATIO
from agentrl.algos.losses.aggregation import aggregate, token_mean
from agentrl.algos.options import call
from agentrl.algos.registries import POLICY_LOSSES as POLICY_LOSSES
from agentrl.algos.user_functions import wrong_tensor
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LossBatch:
    """Input of a policy loss, [B, T] each; `logprobs` carries the gradient.

    `rollouts`, [B] long: rows with the same number are one sequence; None: every row is a sequence.
    """

    logprobs: Tensor
    old_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    rollouts: Tensor | None = None

    def log_ratio(self) -> Tensor:
        """log(policy / old policy), [B, T], 0 outside the mask.

        Raises:
            ConfigError: `old_logprobs` is missing.
        """
        if self.old_logprobs is None:
            raise ConfigError.keyless("this policy loss needs old_logprobs, but old_logprobs is None")
        # torch.where instead of a product: values outside the mask may be infinite
        return torch.where(self.loss_mask.bool(), self.logprobs - self.old_logprobs, 0.0)

    def bounded_log_ratio(self) -> Tensor:
        """`log_ratio` clamped to ±20, so that its exponential is finite; the gradient is 0 beyond the bounds."""
        return self.log_ratio().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def rollout_means(self, values: Tensor) -> Tensor:
        """Mean of `values`, [B, T], over all trained tokens of each row's rollout, [B, 1]."""
        mask = self.loss_mask.bool()
        sums, counts = torch.where(mask, values, 0.0).sum(-1), mask.sum(-1).to(values.dtype)
        if self.rollouts is not None:
            _, of_row = torch.unique(self.rollouts, return_inverse=True)
            sums, counts = (torch.zeros_like(each).index_add(0, of_row, each)[of_row] for each in (sums, counts))
        return (sums / counts.clamp(min=1))[:, None]


TokenLoss = tuple[Tensor, dict[str, Tensor]]
"""Loss of each token, [B, T], and metrics of each token, [B, T]."""


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
    """Return (loss, metrics): the loss to minimise, [], and the mean of each metric over trained tokens, detached.

    Args:
        name: vanilla, gspo, cispo, gmpo, sapo, clip_cov, kl_cov, dppo (dppo_tv, dppo_kl), dro, reinforce, gpg, sft, or
            a loss registered in `POLICY_LOSSES`.
        logprobs: [B, T], log-probabilities under the trained policy.
        old_logprobs: [B, T], log-probabilities in the denominator of the ratios; None for a loss without ratios.
        advantages: [B, T].
        loss_mask: [B, T], true where a token is trained.
        importance_weights: [B, T], factors of the token losses, applied after clipping; None: 1.
        rollouts: [B] long; rows with the same number are one sequence; None: every row is a sequence.
        aggregation, weights, norm_length, denominator: as in `aggregate`.
        options: options of the loss, with defaults (docs/algorithms.md):

            vanilla    clip_ratio_low 0.2, clip_ratio_high 0.2, clip_ratio_c 3
            gspo       clip_ratio_low 3e-4, clip_ratio_high 4e-4
            cispo      clip_ratio_low 1, clip_ratio_high 4
            gmpo       clip_ratio_low 0.4, clip_ratio_high 0.4, bounds on the logarithm of the ratio
            sapo       tau_pos 1, tau_neg 1.05
            clip_cov   clip_ratio_low 0.2, clip_ratio_high 0.2, clip_cov_ratio 2e-4, clip_cov_lb 1, clip_cov_ub 5
            kl_cov     kl_cov_ratio 2e-4, ppo_kl_coef 1
            dppo       divergence tv, clip_ratio_low and _high 0.15 (tv) or 0.05 (kl), clip_ratio_c 20
            dro        dro_beta 1

    Raises:
        ConfigError: the loss has no such option, or it needs old_logprobs and they are missing.
        UnknownNameError: there is no such loss.
    """
    batch = LossBatch(logprobs, old_logprobs, advantages, loss_mask, rollouts)
    losses, metrics = call(f"policy loss '{name}'", POLICY_LOSSES.get(name), batch, options, partial(_wrong, batch))
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


def _wrong(batch: LossBatch, returned: object) -> str:
    """Check the result of a user-defined loss."""
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        return f"must return (losses, metrics), metrics a dict, not a {type(returned).__name__}"
    losses, metrics = returned
    shape = batch.logprobs.shape
    if wrong := wrong_tensor(losses, "losses", shape, batch.loss_mask):
        return wrong
    if batch.logprobs.requires_grad and not losses.requires_grad:
        return "returned losses without a gradient: compute them from batch.logprobs, without .detach()"
    return next(filter(None, (wrong_tensor(each, f"the metric '{key}'", shape) for key, each in metrics.items())), "")
