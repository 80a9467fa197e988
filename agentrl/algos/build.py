"""From the configuration to the algorithm: `algorithm.name` picks how groups are credited and which loss they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agentrl.algos.advantages import ADVANTAGE_ESTIMATORS
from agentrl.algos.base import LossFunction, Need
from agentrl.algos.chosen import estimator_options, policy_loss_options, preference_loss_options
from agentrl.algos.correction import correct
from agentrl.algos.credit import accept, compare, imitate, samples_of
from agentrl.algos.keeping import Keep, keep_of
from agentrl.algos.kl_reward import KLReward, kl_reward
from agentrl.algos.options import needs_of
from agentrl.algos.pairing import PreferenceLoss, centre, choose
from agentrl.algos.policy import PenalisedLoss, PolicyLoss
from agentrl.algos.preference import PREFERENCE_LOSSES
from agentrl.algos.reward_samples import read_ends, read_turns
from agentrl.algos.reward_training import OutcomeLoss, PairRewardLoss
from agentrl.attempt import Group
from agentrl.config.algorithm import AlgorithmConfig, RolloutCorrectionConfig
from agentrl.config.run import RunConfig
from agentrl.samples import Sample

Credit = Callable[[Sequence[Group], Sequence[Sample]], list[Sample]]


@dataclass(frozen=True)
class BuiltAlgorithm:
    """An algorithm put together from functions; see `Algorithm`.

    Attributes:
        keep: which credited samples the loss reads; None: all.
        kl_reward: what is taken from rewards; None where nothing is.
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
        """Whether advantages follow from what samples were scored with, and not from rewards alone."""
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
        """See `Algorithm.correct`. Where not all samples are read, `kept/samples` is the share that is."""
        if self.keep is None:
            return correct(samples, self.correction)
        kept = self.keep(samples)
        corrected, metrics = correct(kept, self.correction)
        return corrected, metrics | {"kept/samples": len(kept) / max(1, len(samples))}


def build_algorithm(config: RunConfig) -> BuiltAlgorithm:
    """The algorithm that `config.algorithm` names.

    It asks for `old_logprobs` only where something compares with the weights at the start of the step: decoupled PPO,
    importance weights, rejection. Else the behaviour policy's log-probabilities take their place (see `PolicyLoss`),
    also where a step has several updates. It asks for `ref_logprobs` where a KL or a preference is measured against the
    reference, and for `values` where the estimator does.

    Raises:
        ConfigError: an option that the chosen estimator or loss does not take.
        UnknownNameError: no estimator or loss of that name.
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
    """What trains a reward model in place of a policy: pairs, the outcomes of conversations, or labels of turns."""
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
