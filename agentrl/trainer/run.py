"""Complete runs, from configuration to results: `agentrl train`, `agentrl eval` and `agentrl.rollout`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import torch

from agentrl.algos.build import build_algorithm
from agentrl.concurrency.notebook import run_loop
from agentrl.concurrency.signals import on_forced_exit
from agentrl.concurrency.stopping import StopAsked, finishing_steps
from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.reporting.evaluation import EVAL_FILE, evaluation
from agentrl.reporting.evaluation_table import print_evaluation
from agentrl.reporting.formatting import first_and_last
from agentrl.reporting.progress_bar import rollout_progress
from agentrl.reporting.report import merged, report_from_run
from agentrl.reporting.report_facts import sampling_of
from agentrl.reporting.sample_choice import instructive, over_time
from agentrl.reporting.samples import TextOf, sample_view
from agentrl.reporting.transcript import print_comparison, print_samples
from agentrl.run_folder.checkpoints import BEST, CHECKPOINTS
from agentrl.run_folder.files import disk_errors_in_one_line, write_atomically
from agentrl.run_folder.layout import CONFIG_FILE, SAMPLES_FILE
from agentrl.run_folder.location import keep_rows, opened, shown
from agentrl.run_folder.reproducibility import ReproducibilityReport
from agentrl.run_folder.resume import check_folder, how_to_resume
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.telemetry.base import check_installed
from agentrl.telemetry.jsonl import METRICS_FILE, read_metrics
from agentrl.trainer.builders.overview import overview
from agentrl.trainer.builders.records import open_reproducibility, open_store
from agentrl.trainer.builders.rollouts import RolloutParts, UserObjects, check_python_objects, open_rollout_parts
from agentrl.trainer.builders.run import open_run
from agentrl.trainer.choices import resolved
from agentrl.trainer.evaluated import Evaluated
from agentrl.trainer.generation import check_output, finish_generation, generation_progress
from agentrl.trainer.loop import train
from agentrl.trainer.validator import Validator
from agentrl.types.rollout import Group

NOTHING = UserObjects()
Show: TypeAlias = Literal["all", "summary"]


def run_training(config: RunConfig, user_objects: UserObjects = NOTHING) -> Path:
    """Train, write the run folder (docs/design.md, section 6) and return the path of the run folder.

    Raises:
        AgentRLError: the configuration, or a model, file or object that it names, cannot be used.
    """
    check_installed(config.trainer.logger)
    check_python_objects(config, user_objects)
    config = resolved(config)
    build_algorithm(config)  # raises configuration errors before a model is loaded
    with opened(config, user_objects.rows) as placed:
        _run_in_folder(placed, user_objects)
    return placed.trainer.run_dir


def _run_in_folder(config: RunConfig, user_objects: UserObjects) -> None:
    folder, hint = config.trainer.run_dir, partial(how_to_resume, config, user_objects.in_python)
    with disk_errors_in_one_line(folder, hint), on_forced_exit(hint):
        print(f"run folder: {shown(folder)}")
        check_folder(config)
        with keep_rows(folder, user_objects.rows):
            check_output(config)
            _limit_threads(config)
            try:
                with finishing_steps():
                    run_loop(_train(config, user_objects))
            except (KeyboardInterrupt, StopAsked):
                if not user_objects.in_python:
                    print(hint(), file=sys.stderr)
                raise KeyboardInterrupt(hint()) from None


def run_evaluation(config: RunConfig, user_objects: UserObjects = NOTHING, show: Show = "all") -> Evaluated:
    """Roll out the tasks of `data.val_files` as in validation, print the results and write `eval.json`.

    Args:
        show: "all" prints samples and tables; "summary" prints one line.

    Raises:
        AgentRLError: the configuration, or a model, file or object that it names, cannot be used.
    """
    config = resolved(config.without("train_files"), "eval")
    with opened(config, user_objects.rows, writes_run=False) as placed:
        folder = placed.trainer.run_dir
        with disk_errors_in_one_line(folder, lambda: "run it again"), keep_rows(folder, user_objects.rows):
            _limit_threads(placed)
            return run_loop(_evaluate(placed, user_objects, show))


def run_rollouts(config: RunConfig, user_objects: UserObjects = NOTHING) -> list[Group]:
    """Roll out one group per training task, in row order, with the sampling parameters of training. Keep no files.

    Raises:
        AgentRLError: the configuration, or a model, file or object that it names, cannot be used.
    """
    config = resolved(config, "rollout")
    with (
        TemporaryDirectory() as folder,
        opened(_in_folder(config, folder), user_objects.rows) as placed,
        keep_rows(placed.trainer.run_dir, user_objects.rows),
    ):
        _limit_threads(placed)
        return run_loop(_rollouts(placed, user_objects))


def _in_folder(config: RunConfig, folder: str) -> RunConfig:
    return config.model_copy(update={"trainer": config.trainer.model_copy(update={"default_local_dir": Path(folder)})})


async def _train(config: RunConfig, user_objects: UserObjects) -> None:
    async with open_run(config, user_objects) as run:
        if run is None:
            return
        print(f"this run:\n{overview(config)}")
        with generation_progress(config, run.rollouts):
            await train(run.parts)
        if config.trainer.mode == "rollout_only" and run.rollouts:
            finish_generation(config, run.rollouts.chat.text)
    folder = config.trainer.run_dir
    if (last := run.after_step.last_validation) and run.rollouts:
        store = TrajectoryStore(folder / TRAJECTORIES / "val")
        _show_samples(folder / SAMPLES_FILE, last[1], run.rollouts, store)
        if pair := first_and_last(merged(read_metrics(folder / METRICS_FILE))):
            print_comparison(*pair)
    if best := run.after_step.progress.best:
        print(f"best: {best}: {shown(folder / CHECKPOINTS / BEST)}")
    print(f"report: {shown(report_from_run(folder))}")


async def _evaluate(config: RunConfig, user_objects: UserObjects, show: Show) -> Evaluated:
    async with open_rollout_parts(config, user_objects) as parts:
        assert parts.val_tasks is not None  # check_evaluation requires validation tasks
        reproducibility = _reproducibility(config, parts)
        validator = Validator(
            parts.val_tasks, parts.collect_val(), _keep_loaded_weights, config.reward.success_threshold
        )
        with rollout_progress(parts.runner, len(parts.val_tasks) * config.rollout.val_kwargs.n):
            metrics, groups = await validator(0)
    folder = config.trainer.run_dir
    notice = _keep_validation(config, parts, groups, reproducibility)
    _show_samples(folder / "eval_samples.json", groups, parts, show=show == "all")
    found = evaluation(groups, config.reward.success_threshold)
    write_atomically(folder / EVAL_FILE, json.dumps(found.values(), indent=2) + "\n")
    evaluated = Evaluated(metrics, groups, found, folder)
    if show == "all":
        print(notice)
        print_evaluation(found, shown(folder / EVAL_FILE), sampling=sampling_of(redacted(config)))
    else:
        print(f"{evaluated.summary}; {notice}")
    return evaluated


def _reproducibility(config: RunConfig, parts: RolloutParts) -> ReproducibilityReport | None:
    """Open the reproducibility report of an evaluation; None if the folder contains a training run."""
    if (config.trainer.run_dir / CONFIG_FILE).exists():
        return None
    # with mode val_only, the report ignores actor.device, which an evaluation does not use
    trainer = config.trainer.model_copy(update={"mode": "val_only"})
    reproducibility = open_reproducibility(config.model_copy(update={"trainer": trainer}), parts)
    reproducibility.begin(-1)
    return reproducibility


def _keep_validation(
    config: RunConfig, parts: RolloutParts, groups: Sequence[Group], reproducibility: ReproducibilityReport | None
) -> str:
    """Store the rollouts as a validation at step 0, unless the folder has a training run; return a line to print.

    The stored rollouts replace those of an earlier evaluation.
    """
    if reproducibility is None:
        folder = shown(config.trainer.run_dir)
        return f"'{folder}' is a training run: these rollouts are not saved, to keep the run's validation rollouts"
    reproducibility.watch(0, "val", groups)
    return f"rollouts: {shown(open_store(config, parts, 'val').write(0, groups))}"


async def _rollouts(config: RunConfig, user_objects: UserObjects) -> list[Group]:
    async with open_rollout_parts(config, user_objects) as parts:
        assert parts.train_tasks is not None  # the purpose `rollout` requires training tasks
        tasks = [replace(task, uid=f"task-{task.index}") for task in parts.train_tasks]
        return await parts.collect_train()(tasks)


async def _keep_loaded_weights(version: int) -> None:
    """Do nothing: evaluation uses the weights that the engine loaded."""


def _limit_threads(config: RunConfig) -> None:
    if config.trainer.num_threads:
        torch.set_num_threads(config.trainer.num_threads)


def _show_samples(
    file: Path, groups: Sequence[Group], parts: RolloutParts, store: TrajectoryStore | None = None, show: bool = True
) -> None:
    """Save a few rollouts from `groups`, and from earlier steps in `store`, as text.

    With `show`, print the chosen rollouts of `groups`.
    """
    chosen = instructive(groups)
    text_of: TextOf = parts.chat.tokenizer.decode
    kept = chosen if store is None else over_time(chosen, store)
    write_atomically(file, json.dumps([sample_view(each.task, each.rollout, text_of, each.step) for each in kept]))
    if show:
        print_samples([sample.rollout for sample in chosen], text_of)
