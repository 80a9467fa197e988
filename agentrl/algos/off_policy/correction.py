"""Off-policy correction of a step: importance weights and rejection. A pure function of samples with log-probabilities.

Axes: N trained tokens of the step, concatenated; U units: tokens, or rollouts for sequence-level weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import torch
from torch import Tensor

from agentrl.algos.off_policy.weights import effective_share, kept, masked, normalised, ratios, truncated
from agentrl.config.algorithm import RolloutCorrectionConfig
from agentrl.types.sample import Sample

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The trained tokens of all samples, concatenated: log(policy / behaviour), [N], and each token's rollout, [N]."""

    log_ratio: Tensor
    rollouts: Tensor


def correct(samples: Sequence[Sample], settings: RolloutCorrectionConfig) -> tuple[list[Sample], Metrics]:
    """Return (samples, metrics): the samples with importance weights and without rejected tokens.

    Samples get `importance_weights` only if `rollout_is` is set. `rollout_rs` sets the `loss_mask` of rejected tokens
    to 0.

    The ratio is exp(old_logprobs - behaviour_logprobs): policy at the start of the step / behaviour policy. The same
    ratio is used for all updates of the step. A sequence is a rollout with all its trajectories. Weights are
    computed before rejection, as in verl. Rejected tokens are excluded from all sums, means and counts of the loss. The
    reward of a rejected rollout still counts in its group's baseline.

    Metrics of the weights before normalisation: `correction/weight_mean`, `_max`, `_min`, and `correction/ess` (as a
    share of the units). Other metrics: `correction/truncated` or `correction/masked`, share of ratios out of bounds;
    `correction/rejected_tokens`, the share of rejected tokens; `correction/rejected_rollouts`, the share of rollouts
    without any token left.

    Raises:
        ValueError: a sample without `old_logprobs` or `behaviour_logprobs`.
    """
    if not settings.corrects or not samples:
        return list(samples), {}
    tokens = _tokens(samples)
    corrected, metrics = list(samples), Metrics()
    if settings.rollout_is is not None:
        weights_N, metrics = _weights(tokens, settings)
        corrected = [
            replace(sample, importance_weights=_spread(sample, values))
            for sample, values in zip(corrected, _split(weights_N, samples), strict=True)
        ]
    if settings.rollout_rs is not None:
        kept_N = torch.stack([kept(each, tokens.log_ratio, tokens.rollouts) for each in settings.rejections]).all(0)
        metrics |= _rejected(kept_N, tokens)
        corrected = [
            replace(sample, loss_mask=[int(stays) for stays in _spread(sample, values)])
            for sample, values in zip(corrected, _split(kept_N, samples), strict=True)
        ]
    return corrected, metrics


def _weights(tokens: _Tokens, settings: RolloutCorrectionConfig) -> tuple[Tensor, Metrics]:
    ratios_U, unit_N = ratios(settings.rollout_is or "token", tokens.log_ratio, tokens.rollouts)
    lower, upper = settings.weight_bounds
    weights_U = truncated(ratios_U, upper) if lower is None else masked(ratios_U, lower, upper)
    metrics = {
        "correction/weight_mean": weights_U.mean(),
        "correction/weight_max": weights_U.max(),
        "correction/weight_min": weights_U.min(),
        "correction/ess": effective_share(weights_U),
        f"correction/{'truncated' if lower is None else 'masked'}": (weights_U != ratios_U).double().mean(),
    }
    applied_U = normalised(weights_U) if settings.rollout_is_batch_normalize else weights_U
    return applied_U[unit_N], {name: float(value) for name, value in metrics.items()}


def _rejected(kept_N: Tensor, tokens: _Tokens) -> Metrics:
    left = len(set(tokens.rollouts[kept_N].tolist())) / len(set(tokens.rollouts.tolist()))
    return {
        "correction/rejected_tokens": 1 - float(kept_N.double().mean()),
        "correction/rejected_rollouts": 1 - left,
    }


def _tokens(samples: Sequence[Sample]) -> _Tokens:
    log_ratios, rollouts = [], []
    numbers: dict[str | int, int] = {}
    for row, sample in enumerate(samples):
        log_ratio = sampled_log_ratio(sample)
        log_ratios.append(log_ratio)
        number = numbers.setdefault(sample.rollout_id or row, len(numbers))
        rollouts.append(torch.full((len(log_ratio),), number))
    return _Tokens(torch.cat(log_ratios), torch.cat(rollouts))


def sampled_log_ratio(sample: Sample) -> Tensor:
    """log(policy / behaviour) of the trained tokens, in float64, with the policy at the start of the step.

    Raises:
        ValueError: the sample lacks `old_logprobs` or `behaviour_logprobs`.
    """
    if sample.old_logprobs is None or sample.behaviour_logprobs is None:
        raise ValueError(f"a sample of rollout '{sample.rollout_id}' has no log-probabilities to compare")
    policy, behaviour = (
        torch.tensor([*compress(values, sample.loss_mask)], dtype=torch.float64)
        for values in (sample.old_logprobs, sample.behaviour_logprobs)
    )
    return policy - behaviour


def _split(values_N: Tensor, samples: Sequence[Sample]) -> Sequence[Tensor]:
    return torch.split(values_N, [sample.num_trained_tokens for sample in samples])


def _spread(sample: Sample, values: Tensor) -> list[float]:
    """Put one value on each trained token, [T]; 0 outside the mask."""
    each = iter(values.tolist())
    return [next(each) if trained else 0.0 for trained in sample.loss_mask]
