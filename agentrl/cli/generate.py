"""`agentrl generate`: sample rollouts for every row once. All early checks run before torch is imported."""

from __future__ import annotations

import argparse
from functools import partial

from agentrl.cli.early import check_early
from agentrl.cli.train import read_config, refuse_own_file
from agentrl.config import RunConfig
from agentrl.config.paths import absolute
from agentrl.config.rules.combinations import check_generation
from agentrl.config.validate import Check
from agentrl.run_folder.location import check_free


def generate(options: argparse.Namespace) -> None:
    """Sample rollouts for every row of `data.train_files`; save them in `trainer.default_local_dir`."""
    read = read_verl_config if options.verl else read_config
    config = for_generation(read(options, check_generation, partial(check_early, purpose="rollout")))
    check_free(absolute(config))
    from agentrl.trainer.run import run_training  # imports torch and transformers

    run_training(config)


def read_verl_config(options: argparse.Namespace, *checks: Check) -> RunConfig:
    """Read the configuration from the keys of verl's main_generation, or of main_generation_server (PPO trainer keys).

    Raises:
        ConfigError: the configuration is invalid or not supported.
    """
    from agentrl.cli.verl.overrides import read_verl, verl_config
    from agentrl.compat.verl.keys.generation import generation_table

    refuse_own_file(options)
    table = generation_table([override.lstrip("+") for override in options.overrides], options.config_name)
    values = read_verl(options.overrides, options.config_dir, options.config_name, table)
    return verl_config(values, *checks, table=table)


def for_generation(config: RunConfig) -> RunConfig:
    """Change `config` for a run that only samples: every row once, in file order unless a shuffle is configured.

    Training options (for example from a saved configuration) are overridden or have no effect.
    """
    shown = tuple(name for name in config.trainer.logger if name != "console")  # a progress bar is shown instead
    once = {"mode": "rollout_only", "total_epochs": 1, "total_training_steps": None, "logger": shown}
    n = config.rollout.n or 1
    shuffle = config.data.shuffle and "shuffle" in config.data.model_fields_set
    return config.model_copy(
        update={
            "trainer": config.trainer.model_copy(update=once),
            "rollout": config.rollout.model_copy(update={"n": n}),
            "data": config.data.model_copy(update={"shuffle": shuffle}),
        }
    )
