"""Measure how the engine's sampling probabilities differ from the backend's at the start of a step.

For tokens of the current policy version (`mismatch/current/…`; all tokens if the staleness is 0), the mismatch comes
only from numerical differences between engine and backend. For older tokens (`mismatch/older/…`), the mismatch also
contains the change of the policy.

Axes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress

import torch
from torch import Tensor

from agentrl.algos.base import AroundLoss, TokenBatch
from agentrl.algos.kl_divergence import MAX_LOG_RATIO
from agentrl.algos.losses.aggregation import token_mean
from agentrl.algos.off_policy.correction import sampled_log_ratio
from agentrl.algos.off_policy.weights import DIVERGENCES
from agentrl.types.sample import Sample

LARGE_DIFFERENCE = 0.1
"""`mismatch/share_above` counts tokens whose log-probabilities differ by more than this number of nats.

0.1 nats is a ratio of 0.90 or 1.11.
"""

PREFIX = "mismatch/"
_PARTS = ("current", "older")


@dataclass(frozen=True)
class WatchedLoss(AroundLoss):
    """A loss that also measures the mismatch, from the log-probabilities that the loss uses.

    This loss is used only for the first update of a step, because later updates no longer have the weights from the
    start of the step. So only the tokens of the first mini-batch are measured.

    Attributes:
        version: policy version at the start of the step.
    """

    version: int

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`; the metrics include the input of `summary`."""
        loss, metrics = self.loss(batch)
        if batch.behaviour_logprobs is None:
            return loss, metrics
        log_ratio = batch.logprobs.detach() - batch.behaviour_logprobs
        older = None if batch.policy_versions is None else batch.policy_versions < self.version
        return loss, metrics | moments(log_ratio, batch.loss_mask, older)


def mismatch_of(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Return `summary` of all trained tokens of a step; empty without samples, or if one lacks log-probabilities."""
    if not samples or any(sample.old_logprobs is None or sample.behaviour_logprobs is None for sample in samples):
        return {}
    log_ratio_1N = torch.cat([sampled_log_ratio(sample) for sample in samples])[None]
    older_1N = None
    if all(sample.policy_versions is not None for sample in samples):
        versions = chain.from_iterable(compress(each.policy_versions or (), each.loss_mask) for each in samples)
        older_1N = torch.tensor([[*versions]]) < version
    found = moments(log_ratio_1N, torch.ones_like(log_ratio_1N, dtype=torch.bool), older_1N)
    return summary({name: float(value) for name, value in found.items()})


def moments(log_ratio: Tensor, loss_mask: Tensor, older: Tensor | None = None) -> dict[str, Tensor]:
    """Means over trained tokens (maxima if the name ends in `/max`), [] each; `add_metrics` can combine micro-batches.

    Args:
        log_ratio: [B, T], log(policy / behaviour).
        loss_mask: [B, T] bool.
        older: [B, T] bool, true where an older policy version sampled the token; None: unknown.
    """
    distance, bounded = log_ratio.abs(), log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio, k3 = bounded.exp(), DIVERGENCES["k3"](bounded)
    of_tokens = {
        "mean": distance,
        "k3": k3,
        "share_above": (distance > LARGE_DIFFERENCE).to(ratio.dtype),
        "ratio_mean": ratio,
        "ratio_square": ratio.square(),
    }
    found = {name: token_mean(values, loss_mask) for name, values in of_tokens.items()}
    found["max"] = _largest(distance, loss_mask)
    masks = {} if older is None else dict(zip(_PARTS, (loss_mask & ~older, loss_mask & older), strict=True))
    for part, mask in masks.items():
        share = mask.to(ratio.dtype)
        found |= {
            f"{part}/share": token_mean(share, loss_mask),
            f"{part}/mean": token_mean(distance * share, loss_mask),
            f"{part}/k3": token_mean(k3 * share, loss_mask),
            f"{part}/max": _largest(distance, mask),
        }
    return {f"{PREFIX}{name}": value for name, value in found.items()}


def summary(moments_of_step: Mapping[str, float]) -> dict[str, float]:
    """Compute the metrics of a step from the result of `moments` for the step; empty if this result is empty.

    mismatch/mean, max        mean and maximum of |log policy - log behaviour|, in nats
    mismatch/k3               the k3 estimate of KL(behaviour || policy), in nats per token
    mismatch/share_above      share of tokens with an absolute difference above 0.1 (`LARGE_DIFFERENCE`)
    mismatch/ratio_mean       mean of policy / behaviour; expected to be 1 if both policies are equal
    mismatch/ess              effective sample size of the ratios, as a share of the tokens
    mismatch/current/…        share, mean, k3, max of the tokens of the current policy version, if there are any
    mismatch/older/…          share, mean, k3, max of the tokens of older versions
    """
    found = dict(moments_of_step)
    if not found:
        return {}
    found[f"{PREFIX}ess"] = found[f"{PREFIX}ratio_mean"] ** 2 / found.pop(f"{PREFIX}ratio_square")
    for part in _PARTS:
        names = [name for name in found if name.startswith(f"{PREFIX}{part}/")]
        values = {name: found.pop(name) for name in names}
        if share := values.get(f"{PREFIX}{part}/share"):
            for name in (f"{PREFIX}{part}/mean", f"{PREFIX}{part}/k3"):
                values[name] /= share
            found |= values
    return found


def split_metrics(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Split the metrics of an update under `WatchedLoss` into the loss's metrics and the mismatch `summary`."""
    others = {name: value for name, value in metrics.items() if not name.startswith(PREFIX)}
    return others, summary({name: value for name, value in metrics.items() if name.startswith(PREFIX)})


def _largest(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values.detach(), 0.0).amax()
