"""From the configuration to the parts of a run; here and in `*_parts` alone are concrete classes named."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentrl.algos.base import Algorithm, Need
from agentrl.algos.build import BuiltAlgorithm, build_algorithm
from agentrl.backends.base import Backend, Score
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config import RunConfig
from agentrl.engines.base import Engine
from agentrl.models.experts import routed_shape
from agentrl.samples import Sample
from agentrl.telemetry.timing import Timer
from agentrl.trainer.after_step import AfterStep, Publish, Validate
from agentrl.trainer.critic import Critic
from agentrl.trainer.critic_parts import load_critic
from agentrl.trainer.engine_meter import EngineMeter
from agentrl.trainer.kl_feedback import KLFeedback
from agentrl.trainer.learner import Learner, updates_per_step
from agentrl.trainer.online_reward import OnlineRewardModel
from agentrl.trainer.online_reward_parts import load_online_reward_model
from agentrl.trainer.parts import Kept, Learn, Metrics, Parts, Progress, Source, timed
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.progress import SampledSteps, open_checkpoints
from agentrl.trainer.record_parts import open_records
from agentrl.trainer.reference import Reference
from agentrl.trainer.reference_parts import load_reference
from agentrl.trainer.reward_model_parts import load_trained_model, open_check, open_reward_rows
from agentrl.trainer.rollout_parts import Brought, RolloutParts, open_rollout_parts
from agentrl.trainer.scorer import Scorer
from agentrl.trainer.source import LiveSource
from agentrl.trainer.source_parts import open_source, stored_steps
from agentrl.trainer.streaming import StreamingSource
from agentrl.trainer.validator import Validator, check_metric
from agentrl.weights.colocation import shared_gpu
from agentrl.weights.publish import Publisher


@dataclass(frozen=True, slots=True)
class Run:
    """A run, ready to start: the loop's parts, and what its last page is written from.

    Attributes:
        rollouts: None where nothing is rolled out.
    """

    parts: Parts
    rollouts: RolloutParts | None
    after_step: AfterStep


@asynccontextmanager
async def open_run(config: RunConfig, brought: Brought) -> AsyncIterator[Run]:
    """Build everything `config` asks for, and close it in the end.

    Raises:
        AgentRLError: something cannot be used as configured.
    """
    timer = Timer()
    if config.rollout.routed_experts:
        routed_shape(config.model)  # says so before servers are started
    async with AsyncExitStack() as stack:
        validator: Validate | None
        if config.algorithm.preset.family == "reward":
            rollouts = None
            source, total_steps, training, validator = await _reward_training(config, timer, stack)
            watched = source
        else:
            online = _online(config, stack)
            rollouts = await _rollouts(config, online.brought(brought) if online else brought, stack)
            source, total_steps = open_source(config, rollouts, timer)
            training = _training(config, rollouts, source, total_steps, timer, stack, online)
            validator = _validator(config, rollouts, training.publish)
            watched = online.watching(source) if online else source
        await training.progress.restore()  # before the records are cut: what cannot go on leaves them as they were
        records = stack.enter_context(open_records(config, rollouts, total_steps, training.progress.latest_step))
        profiler = stack.enter_context(StepProfiler(config.trainer.run_dir / "profile", config.trainer.profile_steps))
        meters: list[Callable[[], Metrics]] = []
        if isinstance(source, (LiveSource, StreamingSource)):
            meters.append(source.metrics)
        if rollouts is not None and rollouts.train_tasks is not None:
            meters.append(EngineMeter(rollouts.engine.metrics))
        if rollouts is not None and rollouts.feed is not None:
            meters.append(rollouts.feed.metrics)
        meters += training.meters
        after_step = AfterStep(
            config, total_steps, training.progress, training.publish, validator, records, timer, profiler, meters
        )
        live = rollouts is not None and rollouts.train_tasks is not None
        publish = training.publish if live else _publish_nothing
        if isinstance(source, StreamingSource):
            publish = source.following(publish)
        stack.callback(gc.unfreeze)
        gc.freeze()  # what is loaded stays to the end: no collection need look through it again at every step
        yield Run(
            Parts(watched, training.algorithm, training.scorer, training.learner, publish, after_step),
            rollouts,
            after_step,
        )


async def _rollouts(config: RunConfig, brought: Brought, stack: AsyncExitStack) -> RolloutParts | None:
    """What rolls out, with the tasks that the run's mode rolls out; None where it rolls out none."""
    if config.trainer.mode in ("val_only", "train_only"):
        config = config.without("train_files")
    if config.trainer.mode == "rollout_only":
        config = config.without("val_files")
    if config.trainer.mode == "train_only" and not config.data.val_files:
        return None
    trains = config.trainer.mode in ("train", "train_only")
    return await stack.enter_async_context(open_rollout_parts(config, brought, trains=trains))


@dataclass(frozen=True, slots=True)
class _Training:
    """What learns, and what its progress is saved by."""

    algorithm: Algorithm
    scorer: Callable[[Sequence[Sample]], Awaitable[list[Sample]]]
    learner: Learn
    publish: Publish
    progress: Progress
    meters: Sequence[Callable[[], Metrics]] = ()


def _training(
    config: RunConfig,
    rollouts: RolloutParts | None,
    source: Source,
    total_steps: int,
    timer: Timer,
    stack: AsyncExitStack,
    online: OnlineRewardModel | None = None,
) -> _Training:
    algorithm = build_algorithm(config)
    if config.trainer.mode in ("val_only", "rollout_only"):
        steps = stored_steps(config) if config.trainer.mode == "rollout_only" else ()
        progress = SampledSteps(steps, source, config.data.train_batch_size)
        return _Training(algorithm, Scorer({}), _learn_nothing, _publish_nothing, progress)
    total_steps = config.trainer.total_training_steps or total_steps
    with_critic = "values" in algorithm.needs
    policy = _policy(config, total_steps - (config.trainer.critic_warmup if with_critic else 0))
    stack.push_async_callback(policy.close)
    critic = _critic(config, total_steps, stack) if with_critic else None
    reference = _reference(config, algorithm, policy, stack)
    scorer = timed(timer, "score", Scorer(_scoring(algorithm, policy, critic, reference)))
    learner = _learner(config, policy, algorithm)
    learn: Learn = critic.before(learner) if critic else learner
    learn, kept = _followed(config, algorithm, policy, reference, learn)
    if rollouts is not None and rollouts.feed is not None:
        kept.append(rollouts.feed)
    learn = timed(timer, "learn", online.after(learn) if online else learn)
    if critic is not None:
        kept.append(critic)
    if online is not None:
        kept.append(online)
    checkpoints = open_checkpoints(config.trainer, policy, source, kept)
    if rollouts is None:
        return _Training(algorithm, scorer, learn, _publish_nothing, checkpoints)
    publisher = _publisher(config, policy, rollouts.engine)
    publish: Publish = timed(timer, "publish", publisher.publish)
    if gpu := shared_gpu(config, rollouts.engine):
        learn, publish = gpu.learning(learn), gpu.publishing(publish)
    return _Training(algorithm, scorer, learn, publish, checkpoints, [publisher.metrics])


async def _reward_training(
    config: RunConfig, timer: Timer, stack: AsyncExitStack
) -> tuple[Source, int, _Training, Validate | None]:
    """What trains a reward model: the source, how many steps it has, what learns, and what checks it."""
    algorithm, stored = build_algorithm(config), config.trainer.mode == "train_only"
    rows = await open_reward_rows(config, stack)
    source, total_steps = open_source(config, None, timer) if stored else rows.training()
    model = load_trained_model(config, config.trainer.total_training_steps or total_steps)
    stack.push_async_callback(model.close)
    check = open_check(config, rows, algorithm, model)
    learn = timed(timer, "learn", _learner(config, model, algorithm))
    progress = open_checkpoints(config.trainer, model, source, [check] if check else [])
    return source, total_steps, _Training(algorithm, Scorer({}), learn, _publish_nothing, progress), check


def _online(config: RunConfig, stack: AsyncExitStack) -> OnlineRewardModel | None:
    """The reward model that learns beside the policy, where there is one and the policy learns, too."""
    if config.reward.reward_model.online is None or config.trainer.mode != "train" or not config.algorithm.live:
        return None
    online = load_online_reward_model(config)
    stack.push_async_callback(online.backend.close)
    return online


def _publisher(config: RunConfig, policy: Backend, engine: Engine) -> Publisher:
    """Servers load what a checkpoint holds, and are probed; an engine in this process has the policy's own weights."""
    served = config.rollout.engine == "sglang"
    return Publisher(
        policy,
        engine,
        weights=policy.checkpoint_weights if served else policy.weights,
        mode=config.rollout.weight_update_mode,
        probe_tokens=config.rollout.sglang.probe_tokens if served else 0,
    )


def _policy(config: RunConfig, total_steps: int) -> TorchBackend:
    updates = updates_per_step(config.data.train_batch_size, config.actor.ppo_mini_batch_size, config.actor.ppo_epochs)
    return load_torch_backend(
        config.model,
        config.actor,
        total_updates=max(1, total_steps) * updates,
        seed=config.trainer.seed,
        routed_experts=config.rollout.routed_experts,
    )


def _critic(config: RunConfig, total_steps: int, stack: AsyncExitStack) -> Critic:
    critic = load_critic(config, total_steps)
    stack.push_async_callback(critic.backend.close)
    return critic


def _scoring(
    algorithm: Algorithm, policy: Backend, critic: Critic | None, reference: Backend | None
) -> dict[Need, Score]:
    """What answers which need of the algorithm."""
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


def _reference(config: RunConfig, algorithm: Algorithm, policy: Backend, stack: AsyncExitStack) -> TorchBackend | None:
    """The reference as a model of its own; None where none is asked for, or where it is the base beneath an adapter."""
    if "ref_logprobs" not in algorithm.needs or (config.ref.path is None and policy.reference_score()):
        return None
    backend = load_reference(config)
    stack.push_async_callback(backend.close)
    return backend


def _followed(
    config: RunConfig, algorithm: BuiltAlgorithm, policy: Backend, reference: TorchBackend | None, learn: Learn
) -> tuple[Learn, list[Kept]]:
    """`learn`, and all that follows what was learnt, which checkpoints keep."""
    kept: list[Kept] = []
    if algorithm.kl_reward is not None:
        feedback = KLFeedback(algorithm.kl_reward)
        learn, kept = feedback.beside(learn), [*kept, feedback]
    if reference is not None:
        follower = Reference(reference, policy, config.ref.sync_steps)
        learn, kept = follower.after(learn), [*kept, follower]
    return learn, kept


def _learner(config: RunConfig, policy: Backend, algorithm: Algorithm) -> Learner:
    return Learner(
        policy,
        algorithm.loss,
        mini_batch_groups=config.actor.ppo_mini_batch_size,
        epochs=config.actor.ppo_epochs,
        seed=config.trainer.seed,
        correct=algorithm.correct,
    )


def _validator(config: RunConfig, rollouts: RolloutParts | None, publish: Publish) -> Validator | None:
    if rollouts is None or rollouts.val_tasks is None:
        return None
    tools, trainer = [schema.name for schema in rollouts.toolbox.schemas], config.trainer
    data_sources = {task.data_source for task in rollouts.val_tasks}
    if trainer.stop_when:
        check_metric("trainer.stop_when.metric", trainer.stop_when.metric, data_sources, tools)
    if trainer.save_best:
        check_metric("trainer.save_best", trainer.save_best, data_sources, tools)
    return Validator(rollouts.val_tasks, rollouts.collect_val(), publish, config.reward.success_threshold)


async def _publish_nothing(version: int) -> None:
    """No engine waits for new weights; validation publishes for itself when it is due."""


async def _learn_nothing(samples: Sequence[Sample], step: int) -> Metrics:
    """The rollouts are all that is wanted."""
    return {}
