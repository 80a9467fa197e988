"""`agentrl eval --responses FILE`, and verl's `main_eval`: texts that are there already, scored."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl.attempt import Group
from agentrl.cli.eval_saved import report
from agentrl.cli.main import finish
from agentrl.cli.replay import nested_overrides
from agentrl.cli.verl import read_verl
from agentrl.compat.verl_keys.evaluation import EVALUATION, RESPONSE_KEY, RESPONSES
from agentrl.compat.verl_keys.translate import in_verls_words, nested, translate
from agentrl.config import RunConfig, validate_config
from agentrl.errors import ConfigError
from agentrl.trainer.elsewhere import run_loop
from agentrl.trainer.evaluation import evaluation
from agentrl.trainer.generation import RESPONSES as COLUMN
from agentrl.trainer.responses import score_responses


def evaluate_responses(options: argparse.Namespace) -> None:
    """Score the texts of `--responses` by `--reward`, else as the configuration says.

    Raises:
        AgentRLError: file, column or reward cannot be used.
    """
    config = _config({**nested_overrides(options.overrides), **_reward(options.reward)})
    evaluate_texts(options.responses, options.response_key or COLUMN, config, options.json)


def evaluate_texts(file: Path, column: str, config: RunConfig, figures: Path | None = None) -> None:
    """Score the texts, print what they achieved, and write it to `figures`, by default beside the file.

    Raises:
        AgentRLError: file, column or reward cannot be used.
    """
    groups = run_loop(score_responses(file, column, config))
    scores = test_scores(groups)
    found = evaluation(groups, config.reward.success_threshold, texts_only=True)
    report(found, figures or file.with_suffix(".eval.json"), scores)
    for name, score in scores.items():
        print(f"{name}: {score:.6g}")


def test_scores(groups: Iterable[Group]) -> dict[str, float]:
    """verl's figures: `test_score/<data source>`, the mean over rows of the mean of their texts."""
    means: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        if scores := [each.reward for each in group.rollouts if not each.failed]:
            means[group.task.data_source].append(fmean(scores))
    return {f"test_score/{source}": fmean(values) for source, values in sorted(means.items())}


def main(overrides: Sequence[str]) -> int:
    """verl's `main_eval`: the same keys, the same grammar; exit status 2 is the user's mistake, as with `agentrl`."""
    return finish(lambda: _evaluate_verl(overrides))


def _evaluate_verl(overrides: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="main_eval", description="Score responses that are there already.")
    parser.add_argument("overrides", nargs="*", help="verl's keys, key=value")
    parser.add_argument("--config-dir", "--config-path", type=Path, help="folder of your own YAML files")
    parser.add_argument("--config-name", help="YAML file in that folder, without its ending")
    options = parser.parse_args(overrides)
    draft = translate(read_verl(options.overrides, options.config_dir, options.config_name, EVALUATION), EVALUATION)
    file, column = draft.values.pop(RESPONSES, None), draft.values.pop(RESPONSE_KEY)
    if file is None:
        raise ConfigError("'data.path' must be given: a file with a column of responses")
    if "reward.custom_reward_function.path" not in draft.values:
        draft.values.pop("reward.custom_reward_function.name", None)
    try:
        config = _config(nested(draft.values))
    except ConfigError as error:
        raise ConfigError(in_verls_words(str(error), draft.said_as, EVALUATION)) from None
    for notice in draft.lines():
        print(f"agentrl: notice: {notice}", file=sys.stderr)
    evaluate_texts(Path(str(file)), str(column), config)


def _config(values: Mapping[str, object]) -> RunConfig:
    """The configuration, of which `data` and `reward` are read: there is no model."""
    return validate_config({"model": {"path": "none"}, **values})


def _reward(said: str | None) -> dict[str, Any]:  # a section of the configuration
    """What `--reward` stands for."""
    if said is None:
        return {}
    path, _, name = said.rpartition(":")
    if not path and not said.endswith(".py"):
        return {"reward": {"name": said}}
    function = {"path": path, "name": name} if path else {"path": said}
    return {"reward": {"custom_reward_function": function}}
