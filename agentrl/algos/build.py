"""From the configuration to the algorithm: `algorithm.name` picks how groups are credited and which loss they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from agentrl.algos.aggregation import aggregate, token_mean
from agentrl.algos.base import Algorithm, LossFunction, Need, TokenBatch
from agentrl.algos.correction import correct
from agentrl.algos.credit import compare, imitate, samples_of
from agentrl.algos.divergence import kl
from agentrl.algos.losses import policy_loss
from agentrl.attempt import Group
from agentrl.config.actor import ActorConfig
from agentrl.config.algorithm import RolloutCorrectionConfig
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.samples import Sample


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss, plus `kl_coef` (if any) times the KL to the reference, minus `entropy_coef` times the entropy.

    Ratios are taken to the behaviour policy's own log-probabilities: a difference between engine and backend is
    corrected for, not hidden. Where `decoupled`, to `old_logprobs`, the policy at the start of the step (Hilton et al.
    2021, arXiv:2110.00641): clipping then bounds what the step does, and `importance_weights`, proximal / behaviour,
    correct for what came before it.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)  # each loss has its own, of any type
    aggregation: str = "token-mean"
    norm_length: int | None = None
    kl_kind: str = "low_var_kl"
    kl_coef: float | None = None
    entropy_coef: float = 0.0
    decoupled: bool = False

    @property
    def needs_entropy(self) -> bool:
        """Whether the entropy takes part in the loss."""
        return self.entropy_coef > 0

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`."""
        loss, metrics = policy_loss(
            self.name,
            batch.logprobs,
            batch.old_logprobs if self.decoupled else batch.behaviour_logprobs,
            batch.advantages,
            batch.loss_mask,
            importance_weights=batch.importance_weights,
            aggregation=self.aggregation,
            weights=batch.weights,
            denominator=batch.denominator,
            **self.options,
        )
        for name, coefficient, values in self._extra_terms(batch):
            loss = loss + coefficient * self._aggregate(values, batch)
            metrics[name] = token_mean(values, batch.loss_mask)
        return loss, metrics | {"entropy": token_mean(batch.entropy, batch.loss_mask)}

    def _extra_terms(self, batch: TokenBatch) -> list[tuple[str, float, Tensor]]:
        terms = []
        if self.kl_coef is not None:
            if batch.ref_logprobs is None:
                raise ConfigError("actor.use_kl_loss needs ref_logprobs on every sample, and there are none")
            terms.append(("kl_loss", self.kl_coef, kl(self.kl_kind, batch.logprobs, batch.ref_logprobs)))
        if self.needs_entropy:
            terms.append(("entropy", -self.entropy_coef, batch.entropy))
        return terms

    def _aggregate(self, values: Tensor, batch: TokenBatch) -> Tensor:
        return aggregate(
            self.aggregation, values, batch.loss_mask, weights=batch.weights, denominator=batch.denominator
        )


@dataclass(frozen=True)
class BuiltAlgorithm:
    """An algorithm put together from functions; see `Algorithm`."""

    needs: frozenset[Need]
    loss: LossFunction
    credit_function: Callable[[Sequence[Group], Sequence[Sample]], list[Sample]]
    correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)

    def samples(self, groups: Sequence[Group]) -> list[Sample]:
        """See `Algorithm.samples`."""
        return samples_of(groups)

    def credit(self, groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
        """See `Algorithm.credit`."""
        return self.credit_function(groups, samples)

    def correct(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
        """See `Algorithm.correct`."""
        return correct(samples, self.correction)


def build_algorithm(config: RunConfig) -> Algorithm:
    """The algorithm that `config.algorithm` names.

    It asks for `old_logprobs` only where something compares with the weights at the start of the step: decoupled PPO,
    importance weights, rejection. Else the behaviour policy's log-probabilities take their place (see `PolicyLoss`),
    also where a step has several updates. It asks for `ref_logprobs` exactly when `actor.use_kl_loss` is on.
    """
    algorithm, correction = config.algorithm, config.algorithm.rollout_correction
    if algorithm.name == "sft":
        return BuiltAlgorithm(_needs(config), _loss("sft", {}, config), imitate)
    options = {"norm_adv_by_std": algorithm.norm_adv_by_std_in_grpo}
    reinforces = correction.bypass_mode and correction.loss_type == "reinforce"
    return BuiltAlgorithm(
        _needs(config),
        _loss("reinforce", {}, config) if reinforces else _loss("vanilla", _clip_options(config.actor), config),
        lambda groups, samples: compare(groups, samples, algorithm.adv_estimator, options),
        correction,
    )


def _needs(config: RunConfig) -> frozenset[Need]:
    correction = config.algorithm.rollout_correction
    needed: dict[Need, bool] = {
        "old_logprobs": correction.corrects or not correction.bypass_mode,
        "ref_logprobs": config.actor.use_kl_loss,
    }
    return frozenset(need for need, asked in needed.items() if asked)


def _clip_options(actor: ActorConfig) -> dict[str, float]:
    return {
        "clip_ratio_low": actor.clip_low,
        "clip_ratio_high": actor.clip_high,
        "clip_ratio_c": actor.clip_ratio_c,
    }


def _loss(name: str, options: dict[str, float], config: RunConfig) -> PolicyLoss:
    actor = config.actor
    return PolicyLoss(
        name,
        options,
        aggregation=actor.loss_agg_mode,
        norm_length=config.data.max_response_length,
        kl_kind=actor.kl_loss_type,
        kl_coef=actor.kl_loss_coef if actor.use_kl_loss else None,
        entropy_coef=actor.entropy_coeff,
        decoupled=not config.algorithm.rollout_correction.bypass_mode,
    )
