"""One run from a configuration to its last page: what `agentrl train` and `agentrl eval` do."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from agentrl.algos.build import build_algorithm
from agentrl.attempt import Group, Rollout
from agentrl.config import RunConfig
from agentrl.interrupts import last_words
from agentrl.telemetry.base import check_installed
from agentrl.telemetry.jsonl import METRICS_FILE, read_metrics
from agentrl.trainer.build import open_run
from agentrl.trainer.checkpoint import BEST, CHECKPOINTS
from agentrl.trainer.elsewhere import run_loop
from agentrl.trainer.evaluation import EVAL_FILE, evaluation
from agentrl.trainer.evaluation_view import print_evaluation
from agentrl.trainer.figures import first_and_last
from agentrl.trainer.files import disk_faults_in_one_line, locked, write_whole
from agentrl.trainer.generation import check_output, finish_generation, generation_progress
from agentrl.trainer.loop import train
from agentrl.trainer.promise import Promise
from agentrl.trainer.record_parts import open_promise, open_store
from agentrl.trainer.report import CONFIG_FILE, SAMPLES_FILE, merged, report_from_run
from agentrl.trainer.resume import check_folder, how_to_go_on
from agentrl.trainer.rollout_bar import rollout_progress
from agentrl.trainer.rollout_parts import Brought, RolloutParts, open_rollout_parts
from agentrl.trainer.sample_view import TextOf, sample_view
from agentrl.trainer.transcript import print_comparison, print_samples
from agentrl.trainer.validator import Validator

NOTHING = Brought()


def run_training(config: RunConfig, brought: Brought = NOTHING) -> Path:
    """Train, and write the run's folder (design, section 6); returns it.

    Raises:
        AgentRLError: something cannot be used as configured.
    """
    check_installed(config.trainer.logger)
    build_algorithm(config)  # what it refuses is told before anything is loaded
    folder, hint = config.trainer.run_dir, partial(how_to_go_on, config)
    with disk_faults_in_one_line(folder, hint), locked(folder), last_words(hint):
        check_folder(config)
        check_output(config)
        _limit_threads(config)
        try:
            run_loop(_train(config, brought))
        except KeyboardInterrupt:
            print(hint(), file=sys.stderr)
            raise
    return folder


def run_evaluation(config: RunConfig, brought: Brought = NOTHING) -> dict[str, float]:
    """Roll out on the validation tasks as validation does, print the figures and write `eval.json`.

    Raises:
        AgentRLError: something cannot be used as configured.
    """
    folder = config.trainer.run_dir
    with disk_faults_in_one_line(folder, lambda: "run it again"):
        folder.mkdir(parents=True, exist_ok=True)  # its config.yaml, if it holds a run, stays the run's
        _limit_threads(config)
        return run_loop(_evaluate(config.without("train_files"), brought))


def run_rollouts(config: RunConfig, brought: Brought = NOTHING) -> list[Group]:
    """Roll every training task out once in the order of the rows, as training samples; nothing is written.

    Raises:
        AgentRLError: something cannot be used as configured.
    """
    _limit_threads(config)
    return run_loop(_rollouts(config, brought))


async def _train(config: RunConfig, brought: Brought) -> None:
    async with open_run(config, brought) as run:
        with generation_progress(config, run.rollouts):
            await train(run.parts)
        if config.trainer.mode == "rollout_only" and run.rollouts:
            finish_generation(config, run.rollouts.chat.text)
    folder = config.trainer.run_dir
    if (last := run.after_step.last_validation) and run.rollouts:
        _show_samples(folder / SAMPLES_FILE, last[1], run.rollouts)
        if pair := first_and_last(merged(read_metrics(folder / METRICS_FILE))):
            print_comparison(*pair)
    if best := run.after_step.progress.best:
        print(f"best: {best}: {folder / CHECKPOINTS / BEST}")
    print(f"report: {report_from_run(folder)}")


async def _evaluate(config: RunConfig, brought: Brought) -> dict[str, float]:
    async with open_rollout_parts(config, brought) as parts:
        assert parts.val_tasks is not None  # check_evaluation asked for them
        promise = _promise(config, parts)
        validator = Validator(
            parts.val_tasks, parts.collect_val(), _keep_loaded_weights, config.reward.success_threshold
        )
        with rollout_progress(parts.runner, len(parts.val_tasks) * config.rollout.val_kwargs.n):
            metrics, groups = await validator(0)
    folder = config.trainer.run_dir
    _keep_validation(config, parts, groups, promise)
    _show_samples(folder / "eval_samples.json", groups, parts)
    found = evaluation(groups, config.reward.success_threshold)
    write_whole(folder / EVAL_FILE, json.dumps(found.values(), indent=2) + "\n")
    print_evaluation(found, folder / EVAL_FILE)
    return metrics


def _promise(config: RunConfig, parts: RolloutParts) -> Promise | None:
    """What says whether the evaluation repeats; None in the folder of a run, whose files stay the run's."""
    if (config.trainer.run_dir / CONFIG_FILE).exists():
        return None
    trainer = config.trainer.model_copy(update={"mode": "val_only"})  # nothing is computed on actor.device
    promise = open_promise(config.model_copy(update={"trainer": trainer}), parts)
    promise.begin(-1)
    return promise


def _keep_validation(config: RunConfig, parts: RolloutParts, groups: Sequence[Group], promise: Promise | None) -> None:
    """As a run keeps its validation before training, in place of that of an earlier evaluation."""
    if promise is None:
        print(f"'{config.trainer.run_dir}' holds a run, whose own validation stays: these rollouts are not kept")
        return
    promise.watch(0, "val", groups)
    print(f"rollouts: {open_store(config, parts, 'val').write(0, groups)}")


async def _rollouts(config: RunConfig, brought: Brought) -> list[Group]:
    async with open_rollout_parts(config, brought) as parts:
        assert parts.train_tasks is not None  # the only source that rollouts have
        tasks = [replace(task, uid=f"task-{task.index}") for task in parts.train_tasks]
        return await parts.collect_train()(tasks)


async def _keep_loaded_weights(version: int) -> None:
    """Evaluation rolls out with the weights the engine was loaded with."""


def _limit_threads(config: RunConfig) -> None:
    if config.trainer.num_threads:
        torch.set_num_threads(config.trainer.num_threads)


def _show_samples(file: Path, groups: Sequence[Group], parts: RolloutParts) -> None:
    """Keep a few rollouts as text and print them: the model's tokens told from the tools'."""
    chosen = _instructive(groups)
    text_of: TextOf = parts.chat.tokenizer.decode
    views = [sample_view(group.task, rollout, text_of) for group, rollout in chosen]
    write_whole(file, json.dumps(views))
    print_samples([rollout for _, rollout in chosen], text_of)


def _instructive(groups: Sequence[Group]) -> list[tuple[Group, Rollout]]:
    """One of the best, one of the worst, one in between: by reward, then by turns."""
    ranked = sorted(
        ((group, rollout) for group in groups for rollout in group.rollouts),
        key=lambda pair: (pair[1].reward, sum(t.num_turns for t in pair[1].trajectories)),
        reverse=True,
    )
    places = sorted({0, len(ranked) // 2, len(ranked) - 1}) if ranked else []
    return [ranked[place] for place in places]
