"""From the configuration to the parts of a run; here and in `*_parts` alone are concrete classes named."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentrl.config import RunConfig
from agentrl.models.experts import routed_shape
from agentrl.telemetry.timing import Timer
from agentrl.trainer.after_step import AfterStep, Publish, Validate
from agentrl.trainer.engine_meter import EngineMeter
from agentrl.trainer.online_reward import OnlineRewardModel
from agentrl.trainer.online_reward_parts import load_online_reward_model
from agentrl.trainer.parts import Metrics, Parts
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.record_parts import open_records
from agentrl.trainer.rollout_parts import Brought, RolloutParts, open_rollout_parts
from agentrl.trainer.source import LiveSource
from agentrl.trainer.source_parts import open_source
from agentrl.trainer.streaming import StreamingSource
from agentrl.trainer.training_parts import open_reward_training, open_training, publish_nothing
from agentrl.trainer.validator import Validator, check_metric


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
            source, total_steps, training, validator = await open_reward_training(config, timer, stack)
            watched = source
        else:
            online = _online(config, stack)
            rollouts = await _rollouts(config, online.brought(brought) if online else brought, stack)
            source, total_steps = open_source(config, rollouts, timer)
            training = open_training(config, rollouts, source, total_steps, timer, stack, online)
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
        publish = training.publish if live else publish_nothing
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


def _online(config: RunConfig, stack: AsyncExitStack) -> OnlineRewardModel | None:
    """The reward model that learns beside the policy, where there is one and the policy learns, too."""
    if config.reward.reward_model.online is None or config.trainer.mode != "train" or not config.algorithm.live:
        return None
    online = load_online_reward_model(config)
    stack.push_async_callback(online.backend.close)
    return online


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
