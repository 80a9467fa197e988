"""`agentrl generate`: rollouts of every row once, with what can be refused refused before torch is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from agentrl.cli.train import read_config
from agentrl.config import RunConfig
from agentrl.config.rules import check_generation


def generate(options: argparse.Namespace) -> None:
    """Roll out every row of `data.train_files` and keep it in `trajectories/train` of `trainer.default_local_dir`."""
    read = read_verl_config if options.verl else read_config
    config = for_generation(read(options, check_generation))
    from agentrl.trainer.run import run_training  # torch and transformers come with it

    run_training(config)


def read_verl_config(options: argparse.Namespace, check: Callable[[RunConfig], None]) -> RunConfig:
    """The same from the words of verl's main_generation, or of its generation server, which are the PPO trainer's.

    Raises:
        ConfigError: it cannot be honoured.
    """
    from agentrl.cli.verl import read_verl, verl_config
    from agentrl.compat.verl_keys.generation import generation_table

    table = generation_table([override.lstrip("+") for override in options.overrides], options.config_name)
    return verl_config(read_verl(options.overrides, options.config_dir, options.config_name, table), check, table)


def for_generation(config: RunConfig) -> RunConfig:
    """`config` as a run that only samples: every row once, in their order unless a shuffle is asked for.

    What only training looks at, as in the configuration of a run whose policy is used, is left as it is or overruled.
    """
    shown = tuple(name for name in config.trainer.logger if name != "console")  # the bar of rollouts takes its place
    once = {"mode": "rollout_only", "total_epochs": 1, "total_training_steps": None, "logger": shown}
    shuffle = config.data.shuffle and "shuffle" in config.data.model_fields_set
    return config.model_copy(
        update={
            "trainer": config.trainer.model_copy(update=once),
            "data": config.data.model_copy(update={"shuffle": shuffle}),
        }
    )
