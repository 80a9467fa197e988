"""What feeds a run, from the configuration: the source of its groups, and how many steps it has."""

from __future__ import annotations

import math
from functools import partial

from agentrl.attempt import Group
from agentrl.config import RunConfig
from agentrl.data.dialogues import Dialogue, load_dialogues
from agentrl.data.order import TaskOrder, task_order
from agentrl.data.tasks import TaskTable
from agentrl.errors import ConfigError, DataError, TemplateError
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.telemetry.timing import Timer
from agentrl.trainer.parts import Source, timed
from agentrl.trainer.provenance import check_vocabulary
from agentrl.trainer.rollout_parts import RolloutParts, tell_few_rows
from agentrl.trainer.source import LiveSource, SavedSource, StoredSource, task_of
from agentrl.trainer.staleness import Admissions
from agentrl.trainer.streaming import StreamingSource
from agentrl.trajectory import Trajectory


def open_source(config: RunConfig, rollouts: RolloutParts | None, timer: Timer) -> tuple[Source, int]:
    """The source, and after how many steps the run ends.

    Args:
        rollouts: what rolls out; None where stored rollouts are all there is.

    Raises:
        AgentRLError: what is to feed the run cannot be read.
    """
    source, total_steps = _open(config, rollouts, timer)
    if never := [str(step) for step in config.trainer.profile_steps if step > total_steps]:
        print(
            f"trainer.profile_steps: the run has {total_steps} steps, so there is no step {', '.join(never)} to profile"
        )
    return source, total_steps


def _open(config: RunConfig, rollouts: RolloutParts | None, timer: Timer) -> tuple[Source, int]:
    if config.trainer.mode == "val_only":
        return StoredSource(_no_groups, ()), 0
    if rollouts is None or config.trainer.mode == "train_only":
        return _stored_source(config)
    source, num_rows = _source(rollouts, timer)
    if num_draws(config, num_rows) is None:
        tell_few_rows(num_rows, config)
    return source, _total_steps(config, num_rows)


def num_draws(config: RunConfig, num_rows: int) -> int | None:
    """How many tasks a run that only samples rolls out: each row as often as there are epochs. None: whole steps."""
    given = config.trainer.mode != "rollout_only" or config.trainer.total_training_steps
    return None if given else config.trainer.total_epochs * num_rows


def stored_steps(config: RunConfig) -> list[int]:
    """The steps whose rollouts this run's folder holds."""
    return TrajectoryStore(config.trainer.run_dir / TRAJECTORIES / "train").steps


def _no_groups(step: int) -> list[Group]:
    return []


def _stored_source(config: RunConfig) -> tuple[Source, int]:
    path, asked = config.trainer.saved_rollouts, config.trainer.total_training_steps
    assert path is not None  # a rule asks for it
    for folder in (path / TRAJECTORIES / "train", path / "train", path):
        store = TrajectoryStore(folder)
        if steps := store.steps[:asked]:
            check_vocabulary(store, folder, config.model)
            if asked and len(steps) < asked:
                print(
                    f"trainer.total_training_steps={asked}, but '{folder}' holds {len(steps)}: the run ends after those"
                )
            return StoredSource(store.groups, steps), len(steps)
    raise ConfigError(f"'trainer.saved_rollouts': '{path}' is no run's folder with {TRAJECTORIES}/train in it")


def _source(rollouts: RolloutParts, timer: Timer) -> tuple[Source, int]:
    """The source, and how many rows it draws from."""
    config, tasks = rollouts.config, rollouts.train_tasks
    seed = config.trainer.seed if config.data.seed is None else config.data.seed
    if tasks is not None:
        order = task_order(tasks.file_sizes, config.data.dataset_weights, seed, config.data.shuffle)
        collect = timed(timer, "collect", rollouts.collect_train())
        size, ends = config.data.train_batch_size, num_draws(config, len(tasks))
        if config.trainer.max_staleness or config.trainer.over_sampling:
            return _streaming_source(rollouts, tasks, order, timer), len(tasks)
        return LiveSource(tasks, order, size, collect, config.trainer.seed, ends), len(tasks)
    dialogues = load_dialogues(config.data.train_files, config.data, max_samples=config.data.train_max_samples)

    def render(row: int) -> Trajectory:
        return _rendered(rollouts, dialogues[row], dialogues.where(row))

    order = task_order(dialogues.file_sizes, config.data.dataset_weights, seed, config.data.shuffle)
    return SavedSource(render, order, config.data.train_batch_size), len(dialogues)


def _streaming_source(rollouts: RolloutParts, tasks: TaskTable, order: TaskOrder, timer: Timer) -> StreamingSource:
    trainer, size = rollouts.config.trainer, rollouts.config.data.train_batch_size
    return StreamingSource(
        Admissions(
            order.at, size, trainer.max_staleness, trainer.over_sampling, _total_steps(rollouts.config, len(tasks))
        ),
        partial(task_of, tasks=tasks, seed=trainer.seed),
        rollouts.attempts_train(),
        rollouts.slots,
        trainer.max_concurrent_rollouts,
        trainer.max_staleness,
        timer,
    )


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
    if ends := num_draws(config, num_rows):
        return math.ceil(ends / config.data.train_batch_size)
    return config.trainer.total_training_steps or max(
        1, config.trainer.total_epochs * num_rows // config.data.train_batch_size
    )
