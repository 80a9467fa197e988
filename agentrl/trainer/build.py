"""From the configuration to the parts of a run: with `rollout_parts`, the one place that names concrete classes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from agentrl.algos.base import Algorithm, Need
from agentrl.algos.build import build_algorithm
from agentrl.backends.base import Backend
from agentrl.backends.torch.backend import load_torch_backend
from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.data.dialogues import Dialogue, load_dialogues
from agentrl.data.order import TaskOrder
from agentrl.errors import DataError, TemplateError
from agentrl.telemetry.base import TrackedRun, Tracker, trackers
from agentrl.telemetry.jsonl import METRICS_FILE, read_metrics
from agentrl.telemetry.timing import Timer
from agentrl.trainer.after_step import AfterStep, Publish
from agentrl.trainer.checkpoint import Checkpoints
from agentrl.trainer.console import ConsoleTracker
from agentrl.trainer.health import Health
from agentrl.trainer.learner import Learner
from agentrl.trainer.parts import Parts, Source
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.records import Records
from agentrl.trainer.rollout_parts import Brought, RolloutParts, open_rollout_parts
from agentrl.trainer.scorer import Scorer
from agentrl.trainer.source import LiveSource, SavedSource
from agentrl.trainer.validator import Validator
from agentrl.trajectory import Trajectory
from agentrl.weights.publish import Publisher

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Run:
    """A run, ready to start: the loop's parts, and what its last page is written from."""

    parts: Parts
    rollouts: RolloutParts
    after_step: AfterStep


@asynccontextmanager
async def open_run(config: RunConfig, brought: Brought) -> AsyncIterator[Run]:
    """Build everything `config` asks for, and close it in the end.

    Raises:
        AgentRLError: something cannot be used as configured.
    """
    timer = Timer()
    async with AsyncExitStack() as stack:
        rollouts = await stack.enter_async_context(open_rollout_parts(config, brought))
        source, num_rows = _source(rollouts, timer)
        total_steps = _total_steps(config, num_rows)
        policy = _policy(config, total_steps)
        stack.push_async_callback(policy.close)
        publish = _timed(timer, "publish", Publisher(policy, rollouts.engine).publish)
        checkpoints = Checkpoints(config.trainer.run_dir / "checkpoints", policy, source)
        loggers = stack.enter_context(_open_trackers(config, total_steps, checkpoints))
        profiler = stack.enter_context(StepProfiler(config.trainer.run_dir / "profile", config.trainer.profile_steps))
        validator = _validator(rollouts, publish)
        records = _records(rollouts, loggers)
        after_step = AfterStep(config, total_steps, checkpoints, publish, validator, records, timer, profiler)
        algorithm = build_algorithm(config)
        parts = Parts(
            source,
            algorithm,
            _timed(timer, "score", Scorer(_scoring(algorithm, policy, config, stack))),
            _timed(timer, "learn", _learner(config, policy, algorithm)),
            publish if rollouts.train_tasks else _publish_nothing,
            after_step,
        )
        yield Run(parts, rollouts, after_step)


def _source(rollouts: RolloutParts, timer: Timer) -> tuple[Source, int]:
    """The source, and how many rows it draws from."""
    config, tasks = rollouts.config, rollouts.train_tasks
    seed = config.trainer.seed if config.data.seed is None else config.data.seed
    if tasks is not None:
        order = TaskOrder(len(tasks), seed, config.data.shuffle)
        collect = _timed(timer, "collect", rollouts.collect_train())
        return LiveSource(tasks, order, config.data.train_batch_size, collect, config.trainer.seed), len(tasks)
    dialogues = load_dialogues(config.data.train_files, config.data, max_samples=config.data.train_max_samples)

    def render(row: int) -> Trajectory:
        return _rendered(rollouts, dialogues[row], dialogues.where(row))

    order = TaskOrder(len(dialogues), seed, config.data.shuffle)
    return SavedSource(render, order, config.data.train_batch_size), len(dialogues)


def _rendered(rollouts: RolloutParts, dialogue: Dialogue, where: str) -> Trajectory:
    data = rollouts.config.data
    schemas = rollouts.toolbox.schemas if dialogue.tools is None else dialogue.tools
    try:
        trajectory = rollouts.chat.dialogue(dialogue.messages, schemas)
    except TemplateError as error:
        raise DataError(f"{where}: {error}") from error
    if (length := len(trajectory.token_ids)) > data.max_prompt_length + data.max_response_length:
        raise DataError(
            f"{where}: the conversation has {length} tokens, more than data.max_prompt_length +"
            f" data.max_response_length, {data.max_prompt_length} + {data.max_response_length}"
        )
    return trajectory


def _total_steps(config: RunConfig, num_rows: int) -> int:
    return config.trainer.total_training_steps or max(
        1, config.trainer.total_epochs * num_rows // config.data.train_batch_size
    )


def _policy(config: RunConfig, total_steps: int) -> Backend:
    mini_batch = config.actor.ppo_mini_batch_size or config.data.train_batch_size
    updates_per_step = config.actor.ppo_epochs * (config.data.train_batch_size // mini_batch)
    return load_torch_backend(
        config.model, config.actor, total_updates=total_steps * updates_per_step, seed=config.trainer.seed
    )


def _scoring(algorithm: Algorithm, policy: Backend, config: RunConfig, stack: AsyncExitStack) -> dict[Need, Backend]:
    """Which backend answers which need of the algorithm; a reference policy is loaded only where one is needed."""
    scoring: dict[Need, Backend] = {}
    if "old_logprobs" in algorithm.needs:
        scoring["old_logprobs"] = policy
    if "ref_logprobs" in algorithm.needs:
        model = config.model.model_copy(update={"path": config.ref.path or config.model.path})
        reference = load_torch_backend(model, config.actor, total_updates=1, seed=config.trainer.seed, trainable=False)
        stack.push_async_callback(reference.close)
        scoring["ref_logprobs"] = reference
    return scoring


def _learner(config: RunConfig, policy: Backend, algorithm: Algorithm) -> Learner:
    return Learner(
        policy,
        algorithm.loss,
        mini_batch_groups=config.actor.ppo_mini_batch_size,
        epochs=config.actor.ppo_epochs,
        seed=config.trainer.seed,
    )


def _validator(rollouts: RolloutParts, publish: Publish) -> Validator | None:
    if rollouts.val_tasks is None:
        return None
    return Validator(rollouts.val_tasks, rollouts.collect_val(), publish, rollouts.config.reward.success_threshold)


def _records(rollouts: RolloutParts, loggers: Sequence[Tracker]) -> Records:
    config = rollouts.config
    health = Health([schema.name for schema in rollouts.toolbox.schemas], compares=config.rollout.n > 1)
    file = config.trainer.run_dir / METRICS_FILE
    if file.exists():  # of a run that goes on: its first steps are the measure
        health.remember(read_metrics(file))
    return Records(loggers, health, config.trainer.log_val_generations, rollouts.chat.tokenizer.decode)


@contextmanager
def _open_trackers(config: RunConfig, total_steps: int, checkpoints: Checkpoints) -> Iterator[list[Tracker]]:
    resumed_at = -1 if checkpoints.latest_step is None else checkpoints.latest_step
    trainer = config.trainer
    run = TrackedRun(trainer.run_dir, trainer.project_name, trainer.experiment_name, redacted(config), resumed_at)
    with ExitStack() as stack:
        opened: list[Tracker] = []
        # jsonl always: the report and resuming read it. The panel comes last: others print as they start
        for name in sorted({"jsonl", *trainer.logger}, key=lambda name: (name == "console", name)):
            opened.append(ConsoleTracker(total_steps, run.name) if name == "console" else trackers.get(name)(run))
            stack.callback(opened[-1].close)
        yield opened


async def _publish_nothing(version: int) -> None:
    """Saved conversations need no engine; validation publishes for itself when it is due."""


def _timed(timer: Timer, name: str, part: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    async def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        with timer.timed(name):
            return await part(*args, **kwargs)

    return timed
