"""Builds the components of a run from the configuration. Only `trainer/builders` refers to concrete classes."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentrl.config import RunConfig
from agentrl.models.experts import routed_shape
from agentrl.run_folder.location import shown
from agentrl.telemetry.timing import Timer
from agentrl.trainer.after_step import AfterStep
from agentrl.trainer.builders.online_reward import load_online_reward_model
from agentrl.trainer.builders.overview import has_online_reward_model
from agentrl.trainer.builders.records import open_records
from agentrl.trainer.builders.rollouts import RolloutParts, UserObjects, open_rollout_parts
from agentrl.trainer.builders.sources import open_source
from agentrl.trainer.builders.training import Built, open_reward_training, open_training, publish_nothing
from agentrl.trainer.finished import finished_step
from agentrl.trainer.learner import StepHooks
from agentrl.trainer.meters import EngineMeter, ToolMeter
from agentrl.trainer.models.online_reward import OnlineRewardModel
from agentrl.trainer.profiling import StepProfiler, check_profiler, phases
from agentrl.trainer.protocols import Metrics, Parts, Publish
from agentrl.trainer.sources.exclusions import Exclusions
from agentrl.trainer.validator import Validator, check_metric


@dataclass(frozen=True, slots=True)
class Run:
    """A run, ready to start: the components of the loop, and the objects that the report needs.

    Attributes:
        rollouts: None if the run has no rollouts.
        hooks: the hooks that `parts.learner` and `parts.publish` run.
    """

    parts: Parts
    rollouts: RolloutParts | None
    after_step: AfterStep
    hooks: StepHooks


@asynccontextmanager
async def open_run(config: RunConfig, user_objects: UserObjects) -> AsyncIterator[Run | None]:
    """Build the run that `config` describes, and close it at the end; yield None if the run is already finished.

    Raises:
        AgentRLError: the configuration, or a model, file or object that it names, cannot be used.
    """
    check_profiler(config.trainer)
    timer = Timer(annotate=phases(config.trainer))
    if config.routed_by:
        routed_shape(config.model, config.routed_by)  # a wrong model is refused before servers start
    async with AsyncExitStack() as stack:
        built = await _build(config, user_objects, timer, stack)
        training = built.training
        if (step := finished_step(config, training.progress, built.total_steps)) is not None:
            folder = shown(config.trainer.run_dir)
            print(f"already finished at step {step}: '{folder}' is not changed")
            yield None
            return
        await training.progress.restore()  # restored first, so that a failure leaves the records unchanged
        latest_step = training.progress.latest_step
        records = stack.enter_context(open_records(config, built.rollouts, built.total_steps, latest_step))
        trainer = config.trainer
        profiler = StepProfiler(trainer.run_dir / "profile", trainer.profile_steps, trainer.profiler)
        stack.enter_context(profiler)
        hooks, meters = training.hooks, _meters(built)
        after_step = AfterStep(
            config,
            built.total_steps,
            training.progress,
            hooks.run_publish,
            built.validator,
            records,
            timer,
            profiler,
            meters,
            built.exclusions,
        )
        publish = hooks.run_publish if built.source.live else publish_nothing
        stack.callback(gc.unfreeze)
        gc.freeze()  # loaded objects live until the end; garbage collection can skip them
        stack.push_async_callback(training.progress.finish)
        parts = Parts(built.source, training.algorithm, training.scorer, hooks.run_learn, publish, after_step)
        yield Run(parts, built.rollouts, after_step, hooks)


async def _build(config: RunConfig, user_objects: UserObjects, timer: Timer, stack: AsyncExitStack) -> Built:
    if config.algorithm.preset.family == "reward":
        return await open_reward_training(config, timer, stack)
    online = _online(config, stack)
    rollouts = await _rollouts(config, online.with_reward(user_objects) if online else user_objects, stack)
    exclusions = Exclusions(config.trainer.save_excluded)
    source, total_steps = open_source(config, rollouts, timer, exclusions.drop)
    training = open_training(config, rollouts, source, total_steps, timer, stack, online, exclusions)
    validator = _validator(config, rollouts, training.hooks.run_publish)
    watched = online.watching(source) if online else source
    return Built(watched, total_steps, training, validator, rollouts, exclusions)


def _meters(built: Built) -> list[Callable[[], Metrics]]:
    """Return the functions that measure additional metrics of a step."""
    meters: list[Callable[[], Metrics]] = [built.source.metrics]
    rollouts = built.rollouts
    if rollouts is not None and built.source.live:
        meters.append(EngineMeter(rollouts.engine.metrics))
        if rollouts.toolbox.tools:
            meters.append(ToolMeter(rollouts.toolbox.metrics))
    if rollouts is not None and rollouts.feed is not None:
        meters.append(rollouts.feed.metrics)
    return [*meters, *built.training.meters]


async def _rollouts(config: RunConfig, user_objects: UserObjects, stack: AsyncExitStack) -> RolloutParts | None:
    """Open the rollout components with the tasks that the run's mode needs; None if the mode has no rollouts."""
    if config.trainer.mode in ("val_only", "train_only"):
        config = config.without("train_files")
    if config.trainer.mode == "rollout_only":
        config = config.without("val_files")
    if config.trainer.mode == "train_only" and not config.data.val_files:
        return None
    trains = config.trainer.mode in ("train", "train_only")
    return await stack.enter_async_context(open_rollout_parts(config, user_objects, trains=trains))


def _online(config: RunConfig, stack: AsyncExitStack) -> OnlineRewardModel | None:
    """Load the online reward model; None if the run has none."""
    if not has_online_reward_model(config):
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
