"""KL penalty on token rewards: minus coefficient x KL to the reference (Ouyang et al. 2022, arXiv:2203.02155)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import torch

from agentrl.algos.kl_divergence import kl
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import ConfigError, Kind
from agentrl.types.sample import Sample

MAX_ERROR = 0.2
"""The relative error of the KL is clipped to the range -0.2 to 0.2 when the coefficient is updated, as in the paper."""


@dataclass(slots=True)
class FixedKL:
    """A constant coefficient, stored in `value`."""

    value: float

    def update(self, current_kl: float, n_steps: int) -> None:
        """Do nothing; see `AdaptiveKL.update`."""


@dataclass(slots=True)
class AdaptiveKL:
    """A coefficient, stored in `value`, that grows while the KL is above the target and shrinks while it is below.

    Attributes:
        value: the coefficient; starts at `init`.
        target: the target KL, in nats.
        horizon: number of rollouts over which the coefficient adapts; with a larger horizon, it adapts more slowly.
    """

    init: InitVar[float]
    target: float
    horizon: float
    value: float = field(init=False)

    def __post_init__(self, init: float) -> None:
        self.value = init

    def update(self, current_kl: float, n_steps: int) -> None:
        """Multiply the value by 1 + clip(kl / target - 1, -0.2, 0.2) * n_steps / horizon.

        Example: KL 0.3, target 0.2, 100 rollouts and horizon 1000 give the factor 1 + 0.2 * 0.1 = 1.02.

        Args:
            current_kl: measured over a step, in nats.
            n_steps: number of rollouts of that step.

        Raises:
            ConfigError: the horizon is so short that the coefficient could change its sign.
        """
        if MAX_ERROR * n_steps >= self.horizon:
            raise ConfigError.at(
                "algorithm.kl_ctrl.horizon",
                Kind.WRONG_VALUE,
                f"horizon {self.horizon:g} of the adaptive KL is too short for {n_steps} rollouts per step, because"
                f" the coefficient could change its sign: set more than {MAX_ERROR * n_steps:g}",
            )
        error = min(max(current_kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.value *= 1 + error * n_steps / self.horizon


KLControl = FixedKL | AdaptiveKL


@dataclass(frozen=True, slots=True)
class KLReward:
    """The KL penalty that is subtracted from the reward of each token of a sample.

    Attributes:
        control: the coefficient. Its current value is used when advantages of a step are computed.
        kind: the KL estimator.
    """

    control: KLControl
    kind: str

    def __call__(self, sample: Sample) -> list[float]:
        """Return the coefficient times the KL, [T]."""
        return [self.control.value * value for value in self.divergence(sample)]

    def divergence(self, sample: Sample) -> Sequence[float]:
        """Return the KL to the reference, [T], in nats; 0 outside the mask.

        The KL uses `old_logprobs` (the policy at the start of the step) if they exist, else `behaviour_logprobs`.

        Raises:
            ConfigError: the sample has no `ref_logprobs`, or no log-probabilities of the policy.
        """
        policy = sample.behaviour_logprobs if sample.old_logprobs is None else sample.old_logprobs
        if policy is None or sample.ref_logprobs is None:
            raise ConfigError.at(
                "algorithm.use_kl_in_reward",
                Kind.MISSING,
                "algorithm.use_kl_in_reward needs ref_logprobs on every sample, but there are none",
            )
        values = kl(self.kind, torch.tensor(policy), torch.tensor(sample.ref_logprobs))
        return torch.where(torch.tensor(sample.loss_mask, dtype=torch.bool), values, 0.0).tolist()


def kl_reward(algorithm: AlgorithmConfig) -> KLReward | None:
    """Return the KL penalty configured in `algorithm`; None if the reward has no KL penalty."""
    if not algorithm.use_kl_in_reward:
        return None
    settings = algorithm.kl_ctrl
    if settings.type == "fixed":
        return KLReward(FixedKL(settings.kl_coef), algorithm.kl_penalty)
    return KLReward(AdaptiveKL(settings.kl_coef, settings.target_kl, settings.horizon), algorithm.kl_penalty)
