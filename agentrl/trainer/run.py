"""One run from a configuration to its last page: what `agentrl train` and `agentrl eval` do."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import yaml

from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.interrupts import last_words
from agentrl.telemetry.base import check_installed
from agentrl.trainer.build import open_run
from agentrl.trainer.checkpoint import BEST, CHECKPOINTS
from agentrl.trainer.files import full_disk_in_one_line, locked, write_whole
from agentrl.trainer.loop import train
from agentrl.trainer.report import CONFIG_FILE, SAMPLES_FILE, report_from_run
from agentrl.trainer.resume import check_folder, how_to_go_on
from agentrl.trainer.rollout_parts import Brought, RolloutParts, open_rollout_parts
from agentrl.trainer.sample_view import TextOf, sample_view
from agentrl.trainer.transcript import print_comparison, print_samples
from agentrl.trainer.validator import Validator
from agentrl.trajectory import Group, Rollout

NOTHING = Brought()


def run_training(config: RunConfig, brought: Brought = NOTHING) -> Path:
    """Train, and write the run's folder (design, section 6); returns it.

    Raises:
        AgentRLError: something cannot be used as configured.
    """
    check_installed(config.trainer.logger)
    folder, hint = config.trainer.run_dir, partial(how_to_go_on, config)
    with locked(folder), full_disk_in_one_line(folder, hint), last_words(hint):
        check_folder(config)
        _limit_threads(config)
        try:
            asyncio.run(_train(config, brought))
        except KeyboardInterrupt:
            print(hint(), file=sys.stderr)
            raise
    return folder


def run_evaluation(config: RunConfig, brought: Brought = NOTHING) -> dict[str, float]:
    """Roll out on the validation tasks as validation does, print the figures and write `eval.json`.

    Raises:
        AgentRLError: something cannot be used as configured.
    """
    config.trainer.run_dir.mkdir(parents=True, exist_ok=True)  # its config.yaml, if it holds a run, stays the run's
    _limit_threads(config)
    return asyncio.run(_evaluate(config, brought))


def run_rollouts(config: RunConfig, brought: Brought = NOTHING) -> list[Group]:
    """Roll every training task out once in the order of the rows, as training samples; nothing is written.

    Raises:
        AgentRLError: something cannot be used as configured.
    """
    _limit_threads(config)
    return asyncio.run(_rollouts(config, brought))


async def _train(config: RunConfig, brought: Brought) -> None:
    async with open_run(config, brought) as run:
        # once everything could be opened: a start that fails leaves the records of an earlier run alone
        write_whole(config.trainer.run_dir / CONFIG_FILE, yaml.safe_dump(redacted(config), sort_keys=False))
        await train(run.parts)
    first, last = run.after_step.first_validation, run.after_step.last_validation
    if last and run.rollouts:
        metrics, groups = last
        _show_samples(config.trainer.run_dir / SAMPLES_FILE, groups, run.rollouts)
        if first and first != metrics:
            print_comparison(first, metrics)
    if best := run.after_step.progress.best:
        print(f"best: {best}: {config.trainer.run_dir / CHECKPOINTS / BEST}")
    print(f"report: {report_from_run(config.trainer.run_dir)}")


async def _evaluate(config: RunConfig, brought: Brought) -> dict[str, float]:
    async with open_rollout_parts(config, brought) as parts:
        assert parts.val_tasks is not None  # check_evaluation asked for them
        validator = Validator(
            parts.val_tasks, parts.collect_val(), _keep_loaded_weights, config.reward.success_threshold
        )
        metrics, groups = await validator(0)
    folder = config.trainer.run_dir
    (folder / "eval.json").write_text(json.dumps(metrics, indent=2) + "\n")
    _show_samples(folder / "eval_samples.json", groups, parts)
    print(f"success {metrics['val/success']:.3f} on {len(groups)} tasks; all figures: {folder / 'eval.json'}")
    return metrics


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
