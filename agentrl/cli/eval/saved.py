"""`agentrl eval --from RUN`: evaluate saved rollouts with their saved scores or with another reward."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agentrl.cli.replay import nested_overrides
from agentrl.errors import ConfigError, DataError
from agentrl.replay.base import Options, Replay
from agentrl.replay.rescore.mode import rescore
from agentrl.replay.saved_run import SavedRun, open_saved
from agentrl.replay.settings import replay_config
from agentrl.reporting.evaluation import Evaluation, evaluation
from agentrl.reporting.evaluation_table import print_evaluation
from agentrl.reporting.report_facts import sampling_of
from agentrl.run_folder.files import write_atomically
from agentrl.security.visible_text import visible
from agentrl.store import StoredRollout
from agentrl.types.rollout import GUARD, Group, Rollout


def evaluate_saved(options: argparse.Namespace) -> None:
    """Read saved rollouts, rescore them if `--reward` is given, print the results and write them as JSON.

    Raises:
        AgentRLError: no rollouts are found, they have no score, or the reward cannot be used.
    """
    run = _open(options.saved, options.split)
    print(visible(run.description))
    rewards = [options.reward] if options.reward else []
    replay = Replay(run, Options(rewards, nested_overrides(options.overrides), options.tokenizer))
    if rewards:
        print(f"rescored: {rescore(replay).summary}")
    found = evaluation(_groups(replay), replay_config(replay).reward.success_threshold)
    if found.overall.reward is None:
        raise DataError(f"'{options.saved}': no rollout has a score: give --reward FILE.py:FUNCTION")
    report(found, options.json, sampling=sampling_of(run.config) if run.split == "val" else None)


def report(
    found: Evaluation, file: Path | None, further: dict[str, float] | None = None, sampling: str | None = None
) -> None:
    """Print the results and `sampling` (how rollouts were sampled). Write the results and `further` values to `file`.

    Raises:
        ConfigError: the file cannot be written.
    """
    if file is None:
        print_evaluation(found, None, sampling=sampling)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({**found.values(), **(further or {})}, indent=2) + "\n")
    except OSError as error:
        raise ConfigError.keyless(f"cannot write '{file}': {error.strerror}; give another file with --json") from error
    print_evaluation(found, file, sampling=sampling)


def _open(where: str, split: str | None) -> SavedRun:
    """Open the rollouts of `split`; None: the validation rollouts if there are any, else the training rollouts.

    If there are several validations, only the last is used, because the weights changed from one to the next.
    """
    try:
        run = open_saved(where, split or "val")
    except DataError:
        if split:
            raise
        run = open_saved(where, "train")
    if run.split == "val" and len(run.steps) > 1:
        print(f"using the last of {len(run.steps)} validations, step {run.steps[-1]}; RUN@STEP selects another")
        return replace(run, steps=run.steps[-1:])
    return run


def _groups(replay: Replay) -> Iterator[Group]:
    """Yield the groups with the scores of `--reward`, else with the saved scores. Some rollouts may have no score."""
    for members in replay.run.groups(_COLUMNS):
        yield Group(members[0].task, [_scored(replay, stored) for stored in members])


_COLUMNS = (
    *("data_source", "index", "rewards", "tool_calls", "error", "infra_failed", "duration_s"),
    "trajectories.segments",
)


def _scored(replay: Replay, stored: StoredRollout) -> Rollout:
    score = replay.score(stored)
    others = {
        name: value
        for name, value in stored.rollout.rewards.items()
        if name != "score" and (name.startswith(GUARD) or not replay.scores)  # guards do not depend on the reward
    }
    return replace(stored.rollout, rewards=others if score is None else {**others, "score": score})
