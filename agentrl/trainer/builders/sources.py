"""Builds the source of a run's groups from the configuration, and computes the number of steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig
from agentrl.config.data import DataConfig
from agentrl.data.dialogues import Dialogue, load_dialogues
from agentrl.data.order import task_order
from agentrl.data.pairs import load_pairs
from agentrl.errors import ConfigError, DataError, Kind, TemplateError
from agentrl.run_folder.provenance import check_vocabulary
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.telemetry.timing import Timer
from agentrl.trainer.builders.rollouts import RolloutParts, print_few_rows
from agentrl.trainer.protocols import Source, timed
from agentrl.trainer.sources.admission import Admissions
from agentrl.trainer.sources.dynamic_sampling import GroupFilter
from agentrl.trainer.sources.exclusions import Drop, ignore
from agentrl.trainer.sources.live import LiveSource, SavedSource, StoredSource, task_of
from agentrl.trainer.sources.pairs import PairSource
from agentrl.trainer.sources.streaming import StreamingSource
from agentrl.trainer.sources.task_queue import Feed
from agentrl.types.messages import ToolSchema
from agentrl.types.rollout import BASELINE, Group, Rollout
from agentrl.types.trajectory import Trajectory


def open_source(
    config: RunConfig, rollouts: RolloutParts | None, timer: Timer, drop: Drop = ignore
) -> tuple[Source, int]:
    """Return the source, and the number of steps of the run.

    Args:
        rollouts: the rollout components; None if the run samples no rollouts.
        drop: records groups that no step trains on.

    Raises:
        AgentRLError: the data or the stored rollouts cannot be read.
    """
    source, total_steps = _open(config, rollouts, timer, drop)
    if never := [str(step) for step in config.trainer.profile_steps if step > total_steps]:
        print(f"trainer.profile_steps: the run has {total_steps} steps, so step {', '.join(never)} is never profiled")
    return source, total_steps


def _open(config: RunConfig, rollouts: RolloutParts | None, timer: Timer, drop: Drop) -> tuple[Source, int]:
    if config.trainer.mode == "val_only":
        return StoredSource(_no_groups, ()), 0
    if rollouts is None or config.trainer.mode == "train_only":
        return _stored_source(config)
    source, num_rows = _source(rollouts, timer, drop)
    if num_draws(config, num_rows) is None:
        print_few_rows(num_rows, config)
    return source, steps_of_rows(config, num_rows)


def num_draws(config: RunConfig, num_rows: int) -> int | None:
    """Return the number of tasks that a `rollout_only` run rolls out: rows times epochs.

    Return None in other modes. Also return None if `trainer.total_training_steps` is set, because all steps then have
    the same number of tasks.
    """
    given = config.trainer.mode != "rollout_only" or config.trainer.total_training_steps
    return None if given else config.trainer.total_epochs * num_rows


def _no_groups(step: int) -> list[Group]:
    return []


def _stored_source(config: RunConfig) -> tuple[Source, int]:
    path, asked = config.trainer.saved_rollouts, config.trainer.total_training_steps
    assert path is not None  # a configuration rule requires this key
    for folder in (path / TRAJECTORIES / "train", path / "train", path):
        store = TrajectoryStore(folder)
        if steps := store.steps[:asked]:
            check_vocabulary(store, folder, config.model)
            if asked and len(steps) < asked:
                print(
                    f"trainer.total_training_steps={asked}, but '{folder}' has {len(steps)} steps: the run ends after"
                    " these steps"
                )
            kept = store.scan(steps=steps[:1], columns=["trajectories.segments", "rewards"])
            first = [stored.rollout for stored in kept]  # these rollouts are checked before a model is loaded
            _refuse_images(store, steps[0], first)
            if config.algorithm.estimator == "remax":
                _need_baseline(store, steps[0], first)
            return StoredSource(partial(_groups_of_text, store), steps), len(steps)
    raise ConfigError.at(
        "trainer.saved_rollouts",
        Kind.NOT_FOUND,
        f"`trainer.saved_rollouts`: '{path}' is not a run folder with {TRAJECTORIES}/train",
    )


def _groups_of_text(store: TrajectoryStore, step: int) -> list[Group]:
    groups = store.groups(step)
    _refuse_images(store, step, (rollout for group in groups for rollout in group.rollouts))
    return groups


def _refuse_images(store: TrajectoryStore, step: int, rollouts: Iterable[Rollout]) -> None:
    if any(trajectory.media for rollout in rollouts for trajectory in rollout.trajectories):
        raise DataError(f"{store.file(step)}: its rollouts have images: training on images is not supported")


def _need_baseline(store: TrajectoryStore, step: int, rollouts: Iterable[Rollout]) -> None:
    if not any(BASELINE in rollout.rewards for rollout in rollouts):
        raise DataError(
            f"{store.file(step)}: it has no '{BASELINE}', the reward of the greedy rollout, which remax needs"
        )


def _source(rollouts: RolloutParts, timer: Timer, drop: Drop) -> tuple[Source, int]:
    """Return the source and the number of rows from which it draws."""
    config, feed = rollouts.config, rollouts.feed
    if feed is None:
        return open_saved_source(rollouts, config.trainer.seed if config.data.seed is None else config.data.seed)
    source = _live_source(rollouts, feed, timer, drop)
    feed.keep_while_in(lambda: source.pending)
    return source, len(feed.tasks)


def _live_source(rollouts: RolloutParts, feed: Feed, timer: Timer, drop: Drop) -> LiveSource | StreamingSource:
    config = rollouts.config
    if config.trainer.max_staleness or config.trainer.over_sampling:
        return _streaming_source(rollouts, feed, timer, drop)
    collect = timed(timer, "collect", feed.observed(rollouts.roll_out_train()))
    size, ends = config.data.train_batch_size, num_draws(config, len(feed.tasks))
    return LiveSource(feed.tasks, feed.order, size, collect, config.trainer.seed, ends, _group_filter(config, drop))


def _group_filter(config: RunConfig, drop: Drop) -> GroupFilter | None:
    """Return the filter for groups with equal rewards; None unless `algorithm.filter_groups` is enabled."""
    asked = config.algorithm.filter_groups
    if not asked.enable:
        return None
    size, threshold = config.data.train_batch_size, config.reward.success_threshold
    return GroupFilter(asked.metric, size, asked.max_num_gen_batches, threshold, drop)


def _streaming_source(rollouts: RolloutParts, feed: Feed, timer: Timer, drop: Drop) -> StreamingSource:
    config, trainer, group_filter = rollouts.config, rollouts.config.trainer, _group_filter(rollouts.config, drop)
    return StreamingSource(
        Admissions(
            feed.order.at,
            config.data.train_batch_size,
            trainer.max_staleness,
            trainer.over_sampling,
            steps_of_rows(config, len(feed.tasks)),
            group_filter.max_drawn if group_filter else None,
        ),
        partial(task_of, tasks=feed.tasks, seed=trainer.seed),
        rollouts.attempts_train(),
        rollouts.slots,
        trainer.max_concurrent_rollouts,
        trainer.max_staleness,
        timer,
        feed.observed_one_by_one(rollouts.group_of_train()),
        group_filter,
        drop,
        config.group_size,
    )


def steps_of_rows(config: RunConfig, num_rows: int) -> int:
    """Return the number of steps of a run over `num_rows` rows."""
    if ends := num_draws(config, num_rows):
        return math.ceil(ends / config.data.train_batch_size)
    return config.trainer.total_training_steps or max(
        1, config.trainer.total_epochs * num_rows // config.data.train_batch_size
    )


def open_saved_source(rollouts: RolloutParts, seed: int) -> tuple[Source, int]:
    """Return the source of saved pairs or conversations (depending on `algorithm.name`), and its number of rows.

    Args:
        seed: seed of the row order.

    Raises:
        DataError: a file or a row cannot be used.
    """
    data, size = rollouts.config.data, rollouts.config.data.train_batch_size
    if rollouts.config.algorithm.preset.feed == "pairs":
        pairs = load_pairs(data.train_files, data, max_samples=data.train_max_samples)
        order = task_order(pairs.file_sizes, data.dataset_weights, seed, data.shuffle)

        def render_side(dialogue: Dialogue, row: int) -> Trajectory:
            return _rendered(rollouts, dialogue, pairs.where(row))

        return PairSource(pairs.__getitem__, render_side, order, size), len(pairs)
    dialogues = load_dialogues(data.train_files, data, max_samples=data.train_max_samples)

    def render(row: int) -> Trajectory:
        return _rendered(rollouts, dialogues[row], dialogues.where(row))

    order = task_order(dialogues.file_sizes, data.dataset_weights, seed, data.shuffle)
    return SavedSource(render, order, size), len(dialogues)


def _rendered(rollouts: RolloutParts, dialogue: Dialogue, where: str) -> Trajectory:
    return rendered(dialogue, where, rollouts.chat, rollouts.toolbox.schemas, rollouts.config.data)


def rendered(
    dialogue: Dialogue, where: str, chat: ChatFormat, schemas: Sequence[ToolSchema], data: DataConfig
) -> Trajectory:
    """Render a conversation as a trajectory of demonstrations.

    Args:
        where: file and row, for errors.
        schemas: tool schemas, used if the conversation has none.

    Raises:
        DataError: the chat template rejects the conversation, or the conversation is too long.
    """
    schemas = schemas if dialogue.tools is None else dialogue.tools
    try:
        trajectory = chat.with_variables(dialogue.variables).dialogue(dialogue.messages, schemas)
    except (TemplateError, DataError) as error:
        raise DataError(f"{where}: {error}") from error
    if (length := len(trajectory.token_ids)) > data.max_prompt_length + data.max_response_length:
        raise DataError(
            f"{where}: the conversation has {length} tokens, more than data.max_prompt_length +"
            f" data.max_response_length, {data.max_prompt_length} + {data.max_response_length}"
        )
    return trajectory
