"""The KL divergence to the reference, taken from the reward of each token (Ouyang et al. 2022, arXiv:2203.02155)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agentrl.algos.divergence import kl
from agentrl.algos.kl_control import AdaptiveKL, FixedKL
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import ConfigError
from agentrl.samples import Sample

KLControl = FixedKL | AdaptiveKL


@dataclass(frozen=True, slots=True)
class KLReward:
    """What is taken from the reward of each token of a sample.

    Attributes:
        control: the coefficient, as it is when a step is credited.
        kind: the estimator of the divergence.
    """

    control: KLControl
    kind: str

    def __call__(self, sample: Sample) -> list[float]:
        """[T]: the coefficient times the divergence."""
        return [self.control.value * value for value in self.divergence(sample)]

    def divergence(self, sample: Sample) -> Sequence[float]:
        """[T], in nats, 0 off the mask: from the reference of the policy that sampled, or if it was scored of that at
        the start of the step.

        Raises:
            ConfigError: the sample was not scored by the reference.
        """
        policy = sample.behaviour_logprobs if sample.old_logprobs is None else sample.old_logprobs
        if policy is None or sample.ref_logprobs is None:
            raise ConfigError("algorithm.use_kl_in_reward needs ref_logprobs on every sample, and there are none")
        values = kl(self.kind, torch.tensor(policy), torch.tensor(sample.ref_logprobs))
        return torch.where(torch.tensor(sample.loss_mask, dtype=torch.bool), values, 0.0).tolist()


def kl_reward(algorithm: AlgorithmConfig) -> KLReward | None:
    """What `algorithm` asks for; None where the reward has no KL in it."""
    if not algorithm.use_kl_in_reward:
        return None
    settings = algorithm.kl_ctrl
    if settings.type == "fixed":
        return KLReward(FixedKL(settings.kl_coef), algorithm.kl_penalty)
    return KLReward(AdaptiveKL(settings.kl_coef, settings.target_kl, settings.horizon), algorithm.kl_penalty)
