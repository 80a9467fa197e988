"""Builds the records of a run from the configuration: trackers, health checks, trajectory stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.reporting.console import ConsoleTracker
from agentrl.reporting.health.monitor import Health
from agentrl.reporting.report_facts import how_sampled
from agentrl.run_folder.files import write_atomically
from agentrl.run_folder.layout import CONFIG_FILE
from agentrl.run_folder.location import link_latest
from agentrl.run_folder.provenance import provenance
from agentrl.run_folder.reproducibility import ReproducibilityReport
from agentrl.run_folder.resume import run_before
from agentrl.security.redaction import holds_redacted
from agentrl.store import TrajectoryStore
from agentrl.store.schema import EXCLUDED_SPLIT, TRAJECTORIES
from agentrl.telemetry.base import TrackedRun, Tracker, trackers
from agentrl.telemetry.jsonl import GENERATIONS_FILE, METRICS_FILE, WARNINGS_FILE, read_metrics
from agentrl.trainer.builders.rollouts import RolloutParts
from agentrl.trainer.records import Records
from agentrl.utils.yaml_text import yaml_text


@contextmanager
def open_records(
    config: RunConfig, rollouts: RolloutParts | None, total_steps: int, latest_step: int | None
) -> Iterator[Records]:
    """Open the records of a run, and close the trackers at the end.

    A new run deletes the records of an earlier run in its folder, and prints a notice.

    Args:
        rollouts: None if the run has no rollouts, not even for validation.
        latest_step: the step that the run resumes from; None for a new run.
    """
    if latest_step is None:
        _print_deleted(config.trainer.run_dir)
    with _open_trackers(config, total_steps, -1 if latest_step is None else latest_step) as opened:
        tools = [schema.name for schema in rollouts.toolbox.schemas] if rollouts else ()
        health = Health(tools, compares=config.group_size > 1, over_sampling=config.trainer.over_sampling)
        file = config.trainer.run_dir / METRICS_FILE
        if file.exists():  # a resumed run: health rules compare new steps with the run's first steps
            health.remember(read_metrics(file))
        began = partial(keep_config, config)
        reproducibility = open_reproducibility(config, rollouts)
        if rollouts is None:
            yield Records(opened, health, 0, _no_text, began=began, reproducibility=reproducibility)
            return
        train, val = (open_store(config, rollouts, split) for split in ("train", "val"))
        sampled = train if rollouts.train_tasks else None  # saved rollouts of another run are not stored again
        text_of = rollouts.chat.tokenizer.decode
        dropped = open_store(config, rollouts, EXCLUDED_SPLIT) if rollouts.train_tasks else None
        num_generations = config.trainer.log_val_generations
        yield Records(opened, health, num_generations, text_of, sampled, val, began, reproducibility, dropped)


def open_reproducibility(config: RunConfig, rollouts: RolloutParts | None) -> ReproducibilityReport:
    """Open the reproducibility report, a file in the run's folder."""
    if rollouts is None:
        return ReproducibilityReport(config, live=False, before=run_before(config))
    tools = [tool.name for tool in rollouts.toolbox.tools.values() if not tool.deterministic]

    def num_evicted() -> float:
        return rollouts.engine.metrics().get("evicted_sessions", 0.0)

    users = rollouts.runner.nondeterministic_users
    return ReproducibilityReport(config, True, run_before(config), num_evicted, tools, users)


def open_store(config: RunConfig, rollouts: RolloutParts, split: str) -> TrajectoryStore:
    """Open the store of the rollouts of `split`, with their provenance."""
    made_with = provenance(rollouts.chat.tokenizer, config, rollouts.toolbox.schemas)
    return TrajectoryStore(config.trainer.run_dir / TRAJECTORIES / split, split=split, provenance=made_with)


def keep_config(config: RunConfig) -> None:
    """Write `config.yaml`, and set the link `latest` to the run."""
    file, kept = config.trainer.run_dir / CONFIG_FILE, redacted(config)
    write_atomically(file, yaml_text(kept))
    if holds_redacted(kept):  # values that were not redacted may be secret too
        file.chmod(0o600)
    link_latest(config.trainer.run_dir)


def _print_deleted(folder: Path) -> None:
    names = [name for name in (METRICS_FILE, GENERATIONS_FILE, WARNINGS_FILE) if (folder / name).exists()]
    if any((folder / TRAJECTORIES).rglob("*.parquet")):
        names.append(TRAJECTORIES)
    if names:
        print(
            f"starting from step 0: '{folder}' has no checkpoint to resume from; deleted old files: {', '.join(names)}"
        )


def _no_text(token_ids: Sequence[int]) -> str:
    raise AssertionError("only validation decodes text, and the run has no validation")


@contextmanager
def _open_trackers(config: RunConfig, total_steps: int, resumed_at: int) -> Iterator[list[Tracker]]:
    trainer = config.trainer
    run = TrackedRun(trainer.run_dir, trainer.project_name, trainer.experiment_name, redacted(config), resumed_at)
    with ExitStack() as stack:
        opened: list[Tracker] = []
        # jsonl is always on, for the report and for resuming. The console comes last: other trackers print at start
        for name in sorted({"jsonl", *trainer.logger}, key=lambda name: (name == "console", name)):
            opened.append(_console(total_steps, run) if name == "console" else trackers.get(name)(run))
            stack.callback(opened[-1].close)
        yield opened


def _console(total_steps: int, run: TrackedRun) -> ConsoleTracker:
    return ConsoleTracker(total_steps, run.name, val_sampling=how_sampled(run.config))
