"""`agentrl eval --from RUN`: what saved rollouts achieved, by their saved scores or by those of another reward."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agentrl.attempt import GUARD, Group, Rollout
from agentrl.cli.replay import nested_overrides
from agentrl.errors import ConfigError, DataError
from agentrl.replay.base import Options, Replay
from agentrl.replay.rescore import rescore, settings_of
from agentrl.replay.saved import SavedRun, open_saved
from agentrl.store import StoredRollout
from agentrl.trainer.evaluation import EVAL_FILE, Evaluation, evaluation
from agentrl.trainer.evaluation_view import print_evaluation
from agentrl.trainer.files import write_whole


def evaluate_saved(options: argparse.Namespace) -> None:
    """Read rollouts, score them anew where a reward is named, print the figures and write them as JSON.

    Raises:
        AgentRLError: there are no such rollouts, they have no score, or the reward cannot be used.
    """
    run = _open(options.saved, options.split)
    print(run.told)
    rewards = [options.reward] if options.reward else []
    replay = Replay(run, Options(rewards, nested_overrides(options.overrides), options.tokenizer))
    if rewards:
        print(f"rescored: {rescore(replay).summary}")
    found = evaluation(_groups(replay), settings_of(replay).reward.success_threshold)
    if found.overall.reward is None:
        raise DataError(f"'{options.saved}': none of its rollouts has a score: give --reward FILE.py:FUNCTION")
    report(found, options.json or (run.folder or Path(options.saved).parent) / EVAL_FILE)


def report(found: Evaluation, file: Path, further: dict[str, float] | None = None) -> None:
    """Print the figures and write them to `file`, with `further` ones.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({**found.values(), **(further or {})}, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write '{file}': {error.strerror}; --json names another file") from error
    print_evaluation(found, file)


def _open(where: str, split: str | None) -> SavedRun:
    """The rollouts of validation where there are some. Of several validations the last: they are of other weights."""
    try:
        run = open_saved(where, split or "val")
    except DataError:
        if split:
            raise
        run = open_saved(where, "train")
    if run.split == "val" and len(run.steps) > 1:
        print(f"of {len(run.steps)} validations the last, step {run.steps[-1]}; RUN@STEP names another")
        return replace(run, steps=run.steps[-1:])
    return run


def _groups(replay: Replay) -> Iterator[Group]:
    """The groups, each rollout under the score that is asked for; one that has none is left without."""
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
        if name != "score" and (name.startswith(GUARD) or not replay.scores)  # guards watch the text, whatever it earns
    }
    return replace(stored.rollout, rewards=others if score is None else {**others, "score": score})
