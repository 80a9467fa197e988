"""What feeds a run, from the configuration: the source of its groups, and how many steps it has."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from agentrl.attempt import BASELINE, Group, Rollout
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.telemetry.timing import Timer
from agentrl.trainer.feed import Feed
from agentrl.trainer.parts import Source, timed
from agentrl.trainer.provenance import check_vocabulary
from agentrl.trainer.rollout_parts import RolloutParts, tell_few_rows
from agentrl.trainer.saved_parts import open_saved_source
from agentrl.trainer.sieve import Sieve
from agentrl.trainer.source import LiveSource, StoredSource, task_of
from agentrl.trainer.staleness import Admissions
from agentrl.trainer.streaming import StreamingSource


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
    return source, steps_of_rows(config, num_rows)


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
            kept = store.scan(steps=steps[:1], columns=["trajectories.segments", "rewards"])
            first = [stored.rollout for stored in kept]  # before a model is loaded
            _refuse_images(store, steps[0], first)
            if config.algorithm.estimator == "remax":
                _need_baseline(store, steps[0], first)
            return StoredSource(partial(_groups_of_text, store), steps), len(steps)
    raise ConfigError(f"'trainer.saved_rollouts': '{path}' is no run's folder with {TRAJECTORIES}/train in it")


def _groups_of_text(store: TrajectoryStore, step: int) -> list[Group]:
    groups = store.groups(step)
    _refuse_images(store, step, (rollout for group in groups for rollout in group.rollouts))
    return groups


def _refuse_images(store: TrajectoryStore, step: int, rollouts: Iterable[Rollout]) -> None:
    if any(trajectory.media for rollout in rollouts for trajectory in rollout.trajectories):
        raise DataError(f"{store.file(step)}: its rollouts hold images: training on images is not in this version")


def _need_baseline(store: TrajectoryStore, step: int, rollouts: Iterable[Rollout]) -> None:
    if not any(BASELINE in rollout.rewards for rollout in rollouts):
        raise DataError(f"{store.file(step)}: it holds no greedy rollout's reward, '{BASELINE}', which remax goes by")


def _source(rollouts: RolloutParts, timer: Timer) -> tuple[Source, int]:
    """The source, and how many rows it draws from."""
    config, feed = rollouts.config, rollouts.feed
    if feed is None:
        return open_saved_source(rollouts, config.trainer.seed if config.data.seed is None else config.data.seed)
    source = _live_source(rollouts, feed, timer)
    feed.keep_while_in(lambda: source.pending)
    return source, len(feed.tasks)


def _live_source(rollouts: RolloutParts, feed: Feed, timer: Timer) -> LiveSource | StreamingSource:
    config = rollouts.config
    if config.trainer.max_staleness or config.trainer.over_sampling:
        return _streaming_source(rollouts, feed, timer)
    collect = timed(timer, "collect", feed.observed(rollouts.roll_out_train()))
    size, ends = config.data.train_batch_size, num_draws(config, len(feed.tasks))
    return LiveSource(feed.tasks, feed.order, size, collect, config.trainer.seed, ends, _sieve(config))


def _sieve(config: RunConfig) -> Sieve | None:
    """What lets only groups through that teach something, where `algorithm.filter_groups` asks for it."""
    asked = config.algorithm.filter_groups
    if not asked.enable:
        return None
    size, threshold = config.data.train_batch_size, config.reward.success_threshold
    return Sieve(asked.metric, size, asked.max_num_gen_batches, threshold)


def _streaming_source(rollouts: RolloutParts, feed: Feed, timer: Timer) -> StreamingSource:
    config, trainer, sieve = rollouts.config, rollouts.config.trainer, _sieve(rollouts.config)
    return StreamingSource(
        Admissions(
            feed.order.at,
            config.data.train_batch_size,
            trainer.max_staleness,
            trainer.over_sampling,
            steps_of_rows(config, len(feed.tasks)),
            sieve.max_drawn if sieve else None,
        ),
        partial(task_of, tasks=feed.tasks, seed=trainer.seed),
        rollouts.attempts_train(),
        rollouts.slots,
        trainer.max_concurrent_rollouts,
        trainer.max_staleness,
        timer,
        feed.observed_one_by_one(rollouts.group_of_train()),
        sieve,
    )


def steps_of_rows(config: RunConfig, num_rows: int) -> int:
    """How many steps a run over so many rows has."""
    if ends := num_draws(config, num_rows):
        return math.ceil(ends / config.data.train_batch_size)
    return config.trainer.total_training_steps or max(
        1, config.trainer.total_epochs * num_rows // config.data.train_batch_size
    )
