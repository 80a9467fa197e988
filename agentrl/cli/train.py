"""`agentrl train` and `agentrl eval`: everything that can be refused is refused before torch is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from agentrl.cli.compose import compose_config
from agentrl.config import RunConfig
from agentrl.config.rules import check_evaluation, check_training
from agentrl.errors import ConfigError


def train(options: argparse.Namespace) -> None:
    """Train a policy; its records are in `trainer.default_local_dir`."""
    config = read_config(options, partial(check_training, groups_of_one=options.verl))
    from agentrl.trainer.run import run_training  # torch and transformers come with it

    run_training(config)


def evaluate(options: argparse.Namespace) -> None:
    """Roll out on `data.val_files` and write `eval.json`; or look at rollouts or texts that are there already."""
    if options.saved and options.responses:
        raise ConfigError("--from and --responses are two things to evaluate: give one of them")
    if options.saved:
        from agentrl.cli.eval_saved import evaluate_saved  # pyarrow comes with it

        evaluate_saved(options)
    elif options.responses:
        from agentrl.cli.eval_responses import evaluate_responses  # likewise

        evaluate_responses(options)
    else:
        _evaluate_model(options)


def _evaluate_model(options: argparse.Namespace) -> None:
    if flags := [f"--{name.replace('_', '-')}" for name in _OF_SAVED if getattr(options, name)]:
        raise ConfigError(f"{flags[0]} goes with --from RUN or --responses FILE: a model is evaluated by key=value")
    config = read_config(options, check_evaluation)
    from agentrl.trainer.run import run_evaluation  # torch and transformers come with it

    run_evaluation(config)


_OF_SAVED = ("split", "reward", "tokenizer", "response_key", "json")


def read_config(options: argparse.Namespace, check: Callable[[RunConfig], None]) -> RunConfig:
    """The configuration that the command line says, in agentrl's words or in verl's, checked.

    Raises:
        ConfigError: it cannot be honoured.
    """
    if options.verl:
        from agentrl.cli.verl import read_verl, verl_config  # its table is read only where it is asked for

        return verl_config(read_verl(options.overrides, options.config_dir, options.config_name), check)
    if options.config_name:
        raise ConfigError("--config-name goes with --verl; a file of agentrl's is +experiment=NAME")
    if verls := [override for override in options.overrides if override.lstrip("+").startswith("actor_rollout_ref.")]:
        raise ConfigError(f"'{verls[0]}' is in verl's words: say --verl too, or actor, rollout, ref and model keys")
    config = compose_config(options.overrides, options.config_dir)
    check(config)
    return config
