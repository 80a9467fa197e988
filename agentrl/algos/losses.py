"""From log-probabilities and advantages to a loss: the door to every policy loss. Axes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from agentrl.algos.aggregation import aggregate, token_mean
from agentrl.algos.options import call
from agentrl.errors import ConfigError
from agentrl.registry import Registry


@dataclass(frozen=True, slots=True)
class LossBatch:
    """What a policy loss reads: all [B, T]; `logprobs` carries the gradient."""

    logprobs: Tensor
    old_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor

    def log_ratio(self) -> Tensor:
        """log(policy / old policy), [B, T].

        Raises:
            ConfigError: there are no old log-probabilities.
        """
        if self.old_logprobs is None:
            raise ConfigError("this policy loss compares with the policy that sampled, and old_logprobs is None")
        return self.logprobs - self.old_logprobs


TokenLoss = tuple[Tensor, dict[str, Tensor]]
"""The loss of each token, [B, T], and metrics of each token, [B, T]."""

POLICY_LOSSES: Registry[Callable[..., TokenLoss]] = Registry(
    "policy loss",
    {
        "vanilla": "agentrl.algos.vanilla:vanilla",
        "reinforce": "agentrl.algos.reinforce:reinforce",
        "sft": "agentrl.algos.sft:sft",
    },
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
    aggregation: str = "token-mean",
    weights: Tensor | Sequence[float] | None = None,
    norm_length: int | None = None,
    denominator: float | None = None,
    **options: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, metrics): the loss, [], to be minimised, and means over trained tokens, [] and detached.

    Args:
        name: vanilla (PPO's clipped ratio), reinforce or sft (weighted negative log-likelihood).
        logprobs: [B, T] of the policy being trained.
        old_logprobs: [B, T] of the policy that ratios are taken to; None where the loss takes none.
        advantages: [B, T].
        loss_mask: [B, T], true where a token is trained.
        importance_weights: [B, T], what the loss of each token is multiplied by, outside any clip; None: 1 each.
        aggregation, weights, norm_length, denominator: as in `aggregate`.
        options: of the loss; vanilla: `clip_ratio_low` (0.2), `clip_ratio_high` (0.2), `clip_ratio_c` (3).

    Raises:
        ConfigError: an option the loss does not take, or old_logprobs missing where it needs them.
        UnknownNameError: no such loss.
    """
    batch = LossBatch(logprobs, old_logprobs, advantages, loss_mask)
    losses, metrics = call(f"policy loss '{name}'", POLICY_LOSSES.get(name), batch, options)
    if importance_weights is not None:
        losses = losses * importance_weights
    loss = aggregate(aggregation, losses, loss_mask, weights=weights, norm_length=norm_length, denominator=denominator)
    return loss, {key: token_mean(values, loss_mask) for key, values in metrics.items()}
