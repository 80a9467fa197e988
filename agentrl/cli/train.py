"""`agentrl train` and `agentrl eval`: everything that can be refused is refused before torch is imported."""

from __future__ import annotations

import argparse

from agentrl.cli.compose import compose_config
from agentrl.config.rules import check_evaluation, check_training


def train(options: argparse.Namespace) -> None:
    """Train a policy; its records are in `trainer.default_local_dir`."""
    config = compose_config(options.overrides, options.config_dir)
    check_training(config)
    from agentrl.trainer.run import run_training  # torch and transformers come with it

    run_training(config)


def evaluate(options: argparse.Namespace) -> None:
    """Roll out on `data.val_files` and write `eval.json`."""
    config = compose_config(options.overrides, options.config_dir)
    check_evaluation(config)
    from agentrl.trainer.run import run_evaluation  # torch and transformers come with it

    run_evaluation(config)
