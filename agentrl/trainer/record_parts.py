"""Where a run's records go, from the configuration: trackers, health, stores of trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import yaml

from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.telemetry.base import TrackedRun, Tracker, trackers
from agentrl.telemetry.jsonl import GENERATIONS_FILE, METRICS_FILE, WARNINGS_FILE, read_metrics
from agentrl.trainer.console import ConsoleTracker
from agentrl.trainer.files import write_whole
from agentrl.trainer.health import Health
from agentrl.trainer.promise import Promise
from agentrl.trainer.provenance import provenance
from agentrl.trainer.records import Records
from agentrl.trainer.report import CONFIG_FILE
from agentrl.trainer.resume import run_before
from agentrl.trainer.rollout_parts import RolloutParts


@contextmanager
def open_records(
    config: RunConfig, rollouts: RolloutParts | None, total_steps: int, latest_step: int | None
) -> Iterator[Records]:
    """The records of a run; its trackers are closed in the end. A new run drops those of an earlier one, and says so.

    Args:
        rollouts: None where nothing is rolled out, validation included.
        latest_step: the step a run goes on from; None for a new one.
    """
    if latest_step is None:
        _tell_dropped(config.trainer.run_dir)
    with _open_trackers(config, total_steps, -1 if latest_step is None else latest_step) as opened:
        tools = [schema.name for schema in rollouts.toolbox.schemas] if rollouts else ()
        health = Health(tools, compares=config.rollout.n > 1, over_sampling=config.trainer.over_sampling)
        file = config.trainer.run_dir / METRICS_FILE
        if file.exists():  # of a run that goes on: its first steps are the measure
            health.remember(read_metrics(file))
        began = partial(_keep_config, config)
        promise = open_promise(config, rollouts)
        if rollouts is None:
            yield Records(opened, health, 0, _no_text, began=began, promise=promise)
            return
        train, val = (open_store(config, rollouts, split) for split in ("train", "val"))
        sampled = train if rollouts.train_tasks else None  # what is stored already is not stored again
        text_of = rollouts.chat.tokenizer.decode
        yield Records(opened, health, config.trainer.log_val_generations, text_of, sampled, val, began, promise)


def open_promise(config: RunConfig, rollouts: RolloutParts | None) -> Promise:
    """What says whether the run repeats, in a file of its folder."""
    if rollouts is None:
        return Promise(config, live=False, before=run_before(config))
    metrics = rollouts.engine.metrics
    return Promise(config, True, run_before(config), lambda: metrics().get("evicted_sessions", 0.0))


def open_store(config: RunConfig, rollouts: RolloutParts, split: str) -> TrajectoryStore:
    """Where the run keeps the rollouts of `split`, with what they were made by."""
    made_with = provenance(rollouts.chat.tokenizer, config, rollouts.toolbox.schemas)
    return TrajectoryStore(config.trainer.run_dir / TRAJECTORIES / split, split=split, provenance=made_with)


def _keep_config(config: RunConfig) -> None:
    write_whole(config.trainer.run_dir / CONFIG_FILE, yaml.safe_dump(redacted(config), sort_keys=False))


def _tell_dropped(folder: Path) -> None:
    names = [name for name in (METRICS_FILE, GENERATIONS_FILE, WARNINGS_FILE) if (folder / name).exists()]
    if any((folder / TRAJECTORIES).rglob("*.parquet")):
        names.append(TRAJECTORIES)
    if names:
        print(f"beginning anew: '{folder}' holds nothing to go on from; dropped there: {', '.join(names)}")


def _no_text(token_ids: Sequence[int]) -> str:
    raise AssertionError("only validation becomes text, and there is none")


@contextmanager
def _open_trackers(config: RunConfig, total_steps: int, resumed_at: int) -> Iterator[list[Tracker]]:
    trainer = config.trainer
    run = TrackedRun(trainer.run_dir, trainer.project_name, trainer.experiment_name, redacted(config), resumed_at)
    with ExitStack() as stack:
        opened: list[Tracker] = []
        # jsonl always: the report and resuming read it. The panel comes last: others print as they start
        for name in sorted({"jsonl", *trainer.logger}, key=lambda name: (name == "console", name)):
            opened.append(ConsoleTracker(total_steps, run.name) if name == "console" else trackers.get(name)(run))
            stack.callback(opened[-1].close)
        yield opened
