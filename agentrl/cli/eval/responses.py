"""`agentrl eval --responses FILE`, and verl's `main_eval`: score existing responses."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl.cli.eval.saved import report
from agentrl.cli.main import finish
from agentrl.cli.replay import nested_overrides
from agentrl.cli.verl.overrides import read_verl
from agentrl.compat.verl.keys.evaluation import EVALUATION, RESPONSE_KEY, RESPONSES
from agentrl.compat.verl.keys.translate import nested, translate, verl_key
from agentrl.concurrency.notebook import run_loop
from agentrl.config import RunConfig, validate_config
from agentrl.errors import ConfigError, Kind
from agentrl.reporting.evaluation import evaluation
from agentrl.trainer.generation import RESPONSES as COLUMN
from agentrl.trainer.score_responses import score_responses
from agentrl.types.rollout import Group


def evaluate_responses(options: argparse.Namespace) -> None:
    """Score the texts of `--responses` with the reward of `--reward`, or else with the configured reward.

    Raises:
        AgentRLError: file, column or reward cannot be used.
    """
    config = _config({**nested_overrides(options.overrides), **_reward(options.reward)})
    evaluate_texts(options.responses, options.response_key or COLUMN, config, options.json)


def evaluate_texts(file: Path, column: str, config: RunConfig, results_file: Path | None = None) -> None:
    """Score the texts, print the results, and write them to `results_file`, by default next to the input file.

    Raises:
        AgentRLError: file, column or reward cannot be used.
    """
    groups = run_loop(score_responses(file, column, config))
    scores = test_scores(groups)
    found = evaluation(groups, config.reward.success_threshold, texts_only=True)
    report(found, results_file or file.with_suffix(".eval.json"), scores)
    for name, score in scores.items():
        print(f"{name}: {score:.6g}")


def test_scores(groups: Iterable[Group]) -> dict[str, float]:
    """Return verl's metrics `test_score/<data source>`: mean score of each row's responses, averaged over the rows."""
    means: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        if scores := [each.reward for each in group.rollouts if not each.failed]:
            means[group.task.data_source].append(fmean(scores))
    return {f"test_score/{source}": fmean(values) for source, values in sorted(means.items())}


def main(overrides: Sequence[str]) -> int:
    """Run verl's `main_eval`, with verl's keys and grammar. Exit status 2 means a user error, as with `agentrl`."""
    return finish(lambda: _evaluate_verl(overrides))


def _evaluate_verl(overrides: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="main_eval", description="Score existing responses.")
    parser.add_argument("overrides", nargs="*", help="verl's keys, key=value")
    parser.add_argument("--config-dir", "--config-path", type=Path, help="folder with your own YAML files")
    parser.add_argument("--config-name", help="name of a YAML file in that folder, without .yaml")
    options = parser.parse_args(overrides)
    draft = translate(read_verl(options.overrides, options.config_dir, options.config_name, EVALUATION), EVALUATION)
    file, column = draft.values.pop(RESPONSES, None), draft.values.pop(RESPONSE_KEY)
    if file is None:
        raise ConfigError.at(
            "data.path", Kind.MISSING, "`data.path` is missing: give a file with a column of responses"
        )
    if "reward.custom_reward_function.path" not in draft.values:
        draft.values.pop("reward.custom_reward_function.name", None)
    try:
        config = _config(nested(draft.values))
    except ConfigError as error:
        raise error.shown_as(verl_key(draft.source_keys, EVALUATION)) from None
    for notice in draft.lines():
        print(f"agentrl: notice: {notice}", file=sys.stderr)
    evaluate_texts(Path(str(file)), str(column), config)


def _config(values: Mapping[str, object]) -> RunConfig:
    """Validate the configuration. Only `data` and `reward` are used, so the model path is a placeholder."""
    return validate_config({"model": {"path": "none"}, **values})


def _reward(reward: str | None) -> dict[str, Any]:  # a section of the configuration
    """Convert `--reward` to configuration values."""
    if reward is None:
        return {}
    path, _, name = reward.rpartition(":")
    if not path and not reward.endswith(".py"):
        return {"reward": {"name": reward}}
    function = {"path": path, "name": name} if path else {"path": reward}
    return {"reward": {"custom_reward_function": function}}
