"""`agentrl data check`: show the content of a dataset and the rows that would cause problems in a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.cli.compose import compose_config, is_override, quoted
from agentrl.cli.early import check_data_early
from agentrl.config import RunConfig
from agentrl.data.task_folders.find import is_task_folders
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.cli.data.probe import Checked
    from agentrl.data.inspection import Finding

TOOLS = "rollout.multi_turn.tool_config_path"
NO_MODEL = "none"
"""Placeholder of `model.path` if no model is given. Lengths are not measured without a model."""


def data(options: argparse.Namespace) -> int:
    """Check the files; return 1 if there are problems, else 0.

    Raises:
        AgentRLError: a file cannot be read, or the model, tools or reward cannot be used.
    """
    config = _config(options)
    # these import torch and transformers
    from agentrl.cli.data.table import document, print_checked
    from agentrl.concurrency.notebook import run_loop

    checked, leaks = run_loop(_check(config))
    problems = [*leaks, *(problem for each in checked.values() for problem in each.problems)]
    if options.json:
        print(json.dumps(document(checked, leaks), indent=2))
    else:
        print_checked(checked, leaks)
    return int(bool(problems))


def _config(options: argparse.Namespace) -> RunConfig:
    files = [word for word in options.overrides if not is_override(word)]
    overrides = [word for word in options.overrides if is_override(word)]
    if files:
        overrides.append(f"data.train_files={_listed(files)}")
    if options.val:
        overrides.append(f"data.val_files={_listed(options.val)}")
    overrides += [f"model.path={quoted(options.model)}"] if options.model else []
    if any(map(is_task_folders, files)) and not any(TOOLS in word for word in overrides):
        overrides.append(f"{TOOLS}=${{agentrl:configs/tool_config/task_folders.yaml}}")
    overrides += _reward(options.reward) if options.reward else []
    if not any(word.lstrip("+").startswith(("model.path=", "experiment=")) for word in overrides):
        overrides.append(f"model.path={NO_MODEL}")
    config = compose_config(overrides, options.config_dir, check_data_early)
    if not (config.data.train_files or config.data.val_files):
        raise ConfigError.keyless(
            "no files to check: give FILE..., or +experiment=NAME to check the files of an experiment;"
            " `agentrl chat MODEL` checks a model"
        )
    return config


def _listed(names: Sequence[str]) -> str:
    return f"[{','.join(map(quoted, names))}]"


def _reward(name: str) -> list[str]:
    path, _, function = name.rpartition(":")
    if not path.endswith(".py"):
        return [f"reward.name={quoted(name)}"]
    custom = "reward.custom_reward_function"
    return [f"{custom}.path={quoted(path)}", f"{custom}.name={quoted(function)}"]


async def _check(config: RunConfig) -> tuple[dict[str, Checked], list[Finding]]:
    """Check the train and val files that are given; return the results, and the rows that occur in both splits."""
    from agentrl.cli.data.probe import open_probe
    from agentrl.data.inspection import leaks as leaks_of

    files = {"train": config.data.train_files, "val": config.data.val_files}
    limits = {"train": config.data.train_max_samples, "val": config.data.val_max_samples}
    checked: dict[str, Checked] = {}
    async with open_probe(config, with_model=config.model.path != NO_MODEL) as probe:
        for split in (each for each in files if files[each]):
            checked[split] = await probe(files[split], limits[split])
    if len(checked) < 2:
        return checked, []
    return checked, [each for each in leaks_of(checked["train"].found, checked["val"].found) if each.count]
