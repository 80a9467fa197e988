"""Build the algorithm from the configuration: `algorithm.name` selects the advantages and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agentrl.algos.advantages.registry import ADVANTAGE_ESTIMATORS
from agentrl.algos.algorithm_options import estimator_options, policy_loss_options, preference_loss_options
from agentrl.algos.base import LossFunction, Need
from agentrl.algos.credit import accept, compare, imitate, samples_of
from agentrl.algos.kl_reward import KLReward, kl_reward
from agentrl.algos.losses.policy import PenalisedLoss, PolicyLoss
from agentrl.algos.off_policy.correction import correct
from agentrl.algos.options import needs_of
from agentrl.algos.preference.losses import PREFERENCE_LOSSES
from agentrl.algos.preference.pairing import PreferenceLoss, centre, choose
from agentrl.algos.reward_model.losses import OutcomeLoss, PairRewardLoss
from agentrl.algos.reward_model.samples import read_ends, read_turns
from agentrl.algos.sample_filter import Keep, keep_of
from agentrl.config.algorithm import AlgorithmConfig, RolloutCorrectionConfig
from agentrl.config.run import RunConfig
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample

Credit = Callable[[Sequence[Group], Sequence[Sample]], list[Sample]]


@dataclass(frozen=True)
class BuiltAlgorithm:
    """An algorithm composed of functions; see `Algorithm`.

    Attributes:
        keep: selects the samples that the loss reads, after the advantages are set; None: all samples.
        kl_reward: the KL penalty on rewards; None if there is none.
    """

    needs: frozenset[Need]
    loss: LossFunction
    credit_function: Credit
    correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    keep: Keep | None = None
    kl_reward: KLReward | None = None
    samples_function: Callable[[Sequence[Group]], list[Sample]] = samples_of

    @property
    def credits_by_scores(self) -> bool:
        """Whether advantages depend on the log-probabilities or values of the samples, not only on rewards."""
        return self.kl_reward is not None or "values" in self.needs

    def samples(self, groups: Sequence[Group]) -> list[Sample]:
        """See `Algorithm.samples`."""
        return self.samples_function(groups)

    def credit(self, groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
        """See `Algorithm.credit`."""
        credited = self.credit_function(groups, samples)
        if self.kl_reward is None:
            return credited
        return [replace(sample, kl_coef=self.kl_reward.control.value) for sample in credited]

    def correct(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
        """See `Algorithm.correct`. If samples are filtered, the metric `kept/samples` is the share of samples kept."""
        if self.keep is None:
            return correct(samples, self.correction)
        kept = self.keep(samples)
        corrected, metrics = correct(kept, self.correction)
        return corrected, metrics | {"kept/samples": len(kept) / max(1, len(samples))}


def build_algorithm(config: RunConfig) -> BuiltAlgorithm:
    """Build the algorithm that `config.algorithm` names.

    `old_logprobs`, under the weights at the start of the step, are needed only for decoupled PPO, importance weights
    and rejection. Otherwise the behaviour policy's log-probabilities are used (see `PolicyLoss`), even if a step
    has several updates. `ref_logprobs` are needed for a KL term or a preference loss with a reference, and
    `values` if the estimator uses them.

    Raises:
        ConfigError: the chosen estimator or loss does not accept an option.
        UnknownNameError: there is no such estimator or loss.
    """
    if config.algorithm.preset.family == "reward":
        return reward_training(config.algorithm)
    penalty, actor = kl_reward(config.algorithm), config.actor
    loss = PenalisedLoss(
        _loss(config),
        kl_kind=actor.kl_loss_type,
        kl_coef=actor.kl_loss_coef if actor.use_kl_loss else None,
        entropy_coef=actor.entropy_coeff,
    )
    credit, correction = _credit(config, penalty), config.algorithm.rollout_correction
    return BuiltAlgorithm(_needs(config), loss, credit, correction, keep_of(config.algorithm), penalty)


def reward_training(algorithm: AlgorithmConfig) -> BuiltAlgorithm:
    """Build the algorithm that trains a reward model: on pairs, outcomes of conversations, or turn labels."""
    asked, keep = algorithm.reward_training, keep_of(algorithm)
    if algorithm.preset.feed == "pairs":
        pairs = PairRewardLoss(asked.center_rewards_coefficient)
        credit = partial(choose, pairing=algorithm.pairing)
        samples = partial(read_ends, outcome="score")
        return BuiltAlgorithm(frozenset(), pairs, credit, keep=keep, samples_function=samples)
    samples = partial(read_ends, outcome=asked.outcome, loss=asked.loss)
    if algorithm.name == "reward_steps":
        samples = partial(read_turns, name=asked.step, loss=asked.loss)
    return BuiltAlgorithm(frozenset(), OutcomeLoss(asked.loss), imitate, keep=keep, samples_function=samples)


def _needs(config: RunConfig) -> frozenset[Need]:
    algorithm, correction = config.algorithm, config.algorithm.rollout_correction
    needed: dict[Need, bool] = {
        "old_logprobs": correction.corrects or not correction.bypass_mode,
        "ref_logprobs": config.actor.use_kl_loss or algorithm.use_kl_in_reward,
    }
    found = frozenset(need for need, asked in needed.items() if asked)
    if algorithm.preset.family == "policy":
        return found | needs_of(ADVANTAGE_ESTIMATORS.get(algorithm.estimator))
    compares = algorithm.preset.family == "preference" and config.loss_name != "ranking"
    return found | needs_of(PREFERENCE_LOSSES.get(config.loss_name)) if compares else found


def _credit(config: RunConfig, penalty: KLReward | None) -> Credit:
    algorithm = config.algorithm
    if algorithm.preset.family == "policy":
        options = estimator_options(algorithm)
        return partial(compare, estimator=algorithm.estimator, options=options, penalty=penalty)
    by_name: dict[str, Credit] = {
        "demonstrated": imitate,
        "threshold": partial(accept, threshold=algorithm.rft_threshold),
        "best_worst": partial(choose, pairing=algorithm.pairing),
        "scores": centre,
    }
    return by_name[algorithm.preset.adv_estimator]


def _loss(config: RunConfig) -> LossFunction:
    name, algorithm = config.loss_name, config.algorithm
    if algorithm.preset.family == "preference":
        options = {} if name == "ranking" else preference_loss_options(name, config.actor)
        return PreferenceLoss(name, algorithm.beta, algorithm.length_normalized, options)
    correction, length = algorithm.rollout_correction, config.data.max_response_length
    if correction.bypass_mode and correction.loss_type == "reinforce":
        return PolicyLoss("reinforce", {}, config.aggregation, length)
    options = policy_loss_options(name, config.actor)
    return PolicyLoss(name, options, config.aggregation, length, decoupled=not correction.bypass_mode)
