"""From the configuration to the parts of a run; here and in `*_parts` alone are concrete classes named."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentrl.algos.base import Algorithm, Need
from agentrl.algos.build import build_algorithm
from agentrl.backends.base import Backend, Score
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config import RunConfig
from agentrl.engines.base import Engine
from agentrl.models.experts import routed_shape
from agentrl.samples import Sample
from agentrl.telemetry.timing import Timer
from agentrl.trainer.after_step import AfterStep, Publish
from agentrl.trainer.engine_meter import EngineMeter
from agentrl.trainer.learner import Learner
from agentrl.trainer.parts import Metrics, Parts, Progress, Source, timed
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.progress import SampledSteps, open_checkpoints
from agentrl.trainer.record_parts import open_records
from agentrl.trainer.rollout_parts import Brought, RolloutParts, open_rollout_parts
from agentrl.trainer.scorer import Scorer
from agentrl.trainer.source_parts import open_source, stored_steps
from agentrl.trainer.streaming import StreamingSource
from agentrl.trainer.validator import Validator, check_metric
from agentrl.weights.colocation import shared_gpu
from agentrl.weights.publish import Publisher

Learn = Callable[[Sequence[Sample], int], Awaitable[Metrics]]


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
        rollouts = await _rollouts(config, brought, stack)
        source, total_steps = open_source(config, rollouts, timer)
        training = _training(config, rollouts, source, total_steps, timer, stack)
        validator = _validator(config, rollouts, training.publish)
        await training.progress.restore()  # before the records are cut: what cannot go on leaves them as they were
        records = stack.enter_context(open_records(config, rollouts, total_steps, training.progress.latest_step))
        profiler = stack.enter_context(StepProfiler(config.trainer.run_dir / "profile", config.trainer.profile_steps))
        meters: list[Callable[[], Metrics]] = [source.metrics] if isinstance(source, StreamingSource) else []
        if rollouts is not None and rollouts.train_tasks is not None:
            meters.append(EngineMeter(rollouts.engine.metrics))
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
            Parts(source, training.algorithm, training.scorer, training.learner, publish, after_step),
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
    return await stack.enter_async_context(open_rollout_parts(config, brought))


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
) -> _Training:
    algorithm = build_algorithm(config)
    if config.trainer.mode in ("val_only", "rollout_only"):
        steps = stored_steps(config) if config.trainer.mode == "rollout_only" else ()
        progress = SampledSteps(steps, source, config.data.train_batch_size)
        return _Training(algorithm, Scorer({}), _learn_nothing, _publish_nothing, progress)
    policy = _policy(config, config.trainer.total_training_steps or total_steps)
    stack.push_async_callback(policy.close)
    scorer = timed(timer, "score", Scorer(_scoring(algorithm, policy, config, stack)))
    learn: Learn = timed(timer, "learn", _learner(config, policy, algorithm))
    checkpoints = open_checkpoints(config.trainer, policy, source)
    if rollouts is None:
        return _Training(algorithm, scorer, learn, _publish_nothing, checkpoints)
    publisher = _publisher(config, policy, rollouts.engine)
    publish: Publish = timed(timer, "publish", publisher.publish)
    if gpu := shared_gpu(config, rollouts.engine):
        learn, publish = gpu.learning(learn), gpu.publishing(publish)
    return _Training(algorithm, scorer, learn, publish, checkpoints, [publisher.metrics])


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
    mini_batch = config.actor.ppo_mini_batch_size or config.data.train_batch_size
    updates_per_step = config.actor.ppo_epochs * (config.data.train_batch_size // mini_batch)
    return load_torch_backend(
        config.model,
        config.actor,
        total_updates=total_steps * updates_per_step,
        seed=config.trainer.seed,
        routed_experts=config.rollout.routed_experts,
    )


def _scoring(algorithm: Algorithm, policy: Backend, config: RunConfig, stack: AsyncExitStack) -> dict[Need, Score]:
    """What answers which need of the algorithm."""
    scoring: dict[Need, Score] = {}
    if "old_logprobs" in algorithm.needs:
        scoring["old_logprobs"] = policy.score
    if "ref_logprobs" in algorithm.needs:
        held = policy.reference_score() if config.ref.path is None else None
        scoring["ref_logprobs"] = held or _reference(config, stack).score
    return scoring


def _reference(config: RunConfig, stack: AsyncExitStack) -> TorchBackend:
    """The reference policy as a model of its own."""
    path, key = (config.ref.path, "ref.path") if config.ref.path else (config.model.path, "model.path")
    model = config.model.model_copy(update={"path": path, "lora_rank": 0, "lora_adapter_path": None})
    actor = config.actor.model_copy(update={"param_offload": config.ref.param_offload})
    backend = load_torch_backend(model, actor, total_updates=1, seed=config.trainer.seed, trainable=False, key=key)
    stack.push_async_callback(backend.close)
    return backend


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
