"""Builds the training components from the configuration: the algorithm, the policy, the critic and the reference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from agentrl.algos.base import Algorithm, Need
from agentrl.algos.build import BuiltAlgorithm, build_algorithm
from agentrl.backends.base import Backend, ModelRequest, Score, load_backend
from agentrl.capabilities import engine_spec
from agentrl.config import RunConfig
from agentrl.engines.base import Engine
from agentrl.errors import ConfigError, Kind
from agentrl.run_folder.resume import stored_steps
from agentrl.telemetry.timing import Timer
from agentrl.trainer.after_step import Validate
from agentrl.trainer.builders.models import load_critic, load_reference
from agentrl.trainer.builders.reward_model import load_trained_model, open_check, open_reward_rows
from agentrl.trainer.builders.rollouts import RolloutParts
from agentrl.trainer.builders.sources import open_source
from agentrl.trainer.checkpointing import SampledSteps, open_checkpoints
from agentrl.trainer.learner import Learner, StepHooks, named, updates_per_step
from agentrl.trainer.models.critic import Critic
from agentrl.trainer.models.kl_controller import KLFeedback
from agentrl.trainer.models.online_reward import OnlineRewardModel
from agentrl.trainer.models.reference import Reference
from agentrl.trainer.protocols import Checkpointable, Metrics, Progress, Source, timed
from agentrl.trainer.scorer import Scorer
from agentrl.trainer.sources.exclusions import Exclusions
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample
from agentrl.weights.colocation import shared_gpu
from agentrl.weights.publish import Publisher


@dataclass(frozen=True, slots=True)
class Training:
    """The training components, and the object that saves the run's progress."""

    algorithm: Algorithm
    scorer: Callable[[Sequence[Sample]], Awaitable[list[Sample]]]
    hooks: StepHooks
    progress: Progress
    meters: Sequence[Callable[[], Metrics]] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """The components that a configuration describes.

    Attributes:
        total_steps: number of steps of the run.
        validator: None if there are no validation rows.
        rollouts: None if the run has no rollouts.
        exclusions: rollouts that are not trained on.
    """

    source: Source
    total_steps: int
    training: Training
    validator: Validate | None
    rollouts: RolloutParts | None = None
    exclusions: Exclusions | None = None


def open_training(
    config: RunConfig,
    rollouts: RolloutParts | None,
    source: Source,
    total_steps: int,
    timer: Timer,
    stack: AsyncExitStack,
    online: OnlineRewardModel | None = None,
    exclusions: Exclusions | None = None,
) -> Training:
    """Build the components that train a policy on the groups of `source`. Modes that only roll out train nothing.

    Args:
        rollouts: rollout components, whose engine receives the new weights; None if the run has no rollouts.
        total_steps: number of steps for which `source` has groups.
        exclusions: records the rollouts that the loss does not use.

    Raises:
        AgentRLError: a model or the algorithm cannot be used as configured.
    """
    algorithm = build_algorithm(config)
    if config.trainer.mode in ("val_only", "rollout_only"):
        return _only_sampling(config, algorithm, source, timer)
    total_steps = config.trainer.total_training_steps or total_steps
    with_critic = "values" in algorithm.needs
    warmup = _warmup(config, total_steps) if with_critic else 0
    policy = _policy(config, total_steps - warmup)
    stack.push_async_callback(policy.close)
    critic = _critic(config, total_steps, stack) if with_critic else None
    reference = _reference(config, algorithm, policy, stack)
    scorer = timed(timer, "score", Scorer(_scoring(algorithm, policy, critic, reference)))
    feedback = KLFeedback(algorithm.kl_reward) if algorithm.kl_reward else None
    follower = Reference(reference, policy, config.ref.sync_steps) if reference else None
    feed = rollouts.feed if rollouts else None
    kept: Sequence[Checkpointable | None] = (feedback, follower, feed, critic, online)
    progress = open_checkpoints(config.trainer, policy, source, [each for each in kept if each is not None])
    publisher = _publisher(config, policy, rollouts.engine) if rollouts else None
    gpu = shared_gpu(config, rollouts.engine) if rollouts else None
    hooks = StepHooks(
        timer,
        before_update=named(
            gpu_handover=gpu.hand_over if gpu else None,
            kl_controller=feedback,
            critic=critic,
        ),
        update=named(learn=_learner(config, policy, algorithm, warmup, exclusions)),
        after_update=named(reference_sync=follower if config.ref.sync_steps else None, reward_model=online),
        before_publish=named(gpu_return=gpu.take_back if gpu else None),
        publish=named(publish=publisher.publish if publisher else None),
    )
    return Training(algorithm, scorer, hooks, progress, [publisher.metrics] if publisher else ())


def _only_sampling(config: RunConfig, algorithm: BuiltAlgorithm, source: Source, timer: Timer) -> Training:
    if algorithm.credits_by_scores:
        algorithm = replace(algorithm, samples_function=_no_samples)
    steps = stored_steps(config) if config.trainer.mode == "rollout_only" else ()
    progress = SampledSteps(steps, source, config.data.train_batch_size)
    return Training(algorithm, Scorer({}), StepHooks(timer), progress)


def _warmup(config: RunConfig, total_steps: int) -> int:
    if (warmup := config.trainer.critic_warmup) >= total_steps:
        raise ConfigError.at(
            "trainer.critic_warmup",
            Kind.WRONG_VALUE,
            f"`trainer.critic_warmup={warmup}` leaves no step to train the policy: the run has {total_steps} steps",
        )
    return warmup


async def open_reward_training(config: RunConfig, timer: Timer, stack: AsyncExitStack) -> Built:
    """Build the components that train and validate a reward model."""
    algorithm, stored = build_algorithm(config), config.trainer.mode == "train_only"
    rows = await open_reward_rows(config, stack)
    source, total_steps = open_source(config, None, timer) if stored else rows.training()
    model = load_trained_model(config, config.trainer.total_training_steps or total_steps)
    stack.push_async_callback(model.close)
    check = open_check(config, rows, algorithm, model)
    hooks = StepHooks(timer, update=named(learn=_learner(config, model, algorithm)))
    progress = open_checkpoints(config.trainer, model, source, [check] if check else [])
    return Built(source, total_steps, Training(algorithm, Scorer({}), hooks, progress), check)


def _publisher(config: RunConfig, policy: Backend, engine: Engine) -> Publisher:
    """Build the publisher for the engine's weight format.

    If the engine's spec requires it, the publisher compares engine and policy on a few tokens after each update.
    """
    spec = engine_spec(config.rollout.engine)
    return Publisher(
        policy,
        engine,
        weights=policy.checkpoint_weights if spec.checkpoint_weights else policy.weights,
        mode=config.rollout.weight_update_mode,
        probe_tokens=config.rollout.sglang.probe_tokens if spec.probed else 0,
    )


def _policy(config: RunConfig, total_steps: int) -> Backend:
    updates = updates_per_step(config.data.train_batch_size, config.actor.ppo_mini_batch_size, config.actor.ppo_epochs)
    total_updates = max(1, total_steps) * updates
    request = ModelRequest(config.model, config.actor, total_updates=total_updates, routed_by=config.routed_by)
    return load_backend(config, request)


def _critic(config: RunConfig, total_steps: int, stack: AsyncExitStack) -> Critic:
    critic = load_critic(config, total_steps)
    stack.push_async_callback(critic.backend.close)
    return critic


def _scoring(
    algorithm: Algorithm, policy: Backend, critic: Critic | None, reference: Backend | None
) -> dict[Need, Score]:
    """Return the scoring function for each kind of score that the algorithm needs."""
    scoring: dict[Need, Score] = {}
    if "old_logprobs" in algorithm.needs:
        scoring["old_logprobs"] = policy.score
    if critic is not None:
        scoring["values"] = critic.backend.score
    if reference is not None:
        scoring["ref_logprobs"] = reference.score
    elif "ref_logprobs" in algorithm.needs and (held := policy.reference_score()):
        scoring["ref_logprobs"] = held
    return scoring


def _reference(config: RunConfig, algorithm: Algorithm, policy: Backend, stack: AsyncExitStack) -> Backend | None:
    """Load the reference as a separate model.

    Return None if no reference is needed, or if the reference is the policy's base model without its LoRA adapter.
    """
    if "ref_logprobs" not in algorithm.needs or (config.ref.path is None and policy.reference_score()):
        return None
    backend = load_reference(config)
    stack.push_async_callback(backend.close)
    return backend


def _learner(
    config: RunConfig, policy: Backend, algorithm: Algorithm, warmup: int = 0, exclusions: Exclusions | None = None
) -> Learner:
    overlong = config.algorithm.overlong_filter
    return Learner(
        policy,
        algorithm.loss,
        mini_batch_groups=config.actor.ppo_mini_batch_size,
        epochs=config.actor.ppo_epochs,
        seed=config.trainer.seed,
        correct=exclusions.observed(algorithm.correct, overlong=overlong) if exclusions else algorithm.correct,
        warmup=warmup,
    )


def _no_samples(groups: Sequence[Group]) -> list[Sample]:
    """Return no samples, because the advantages need model scores, which a run that only rolls out does not have."""
    return []


async def publish_nothing(version: int) -> None:
    """Do nothing: the training data is not sampled during the run, and validation publishes the weights itself."""
