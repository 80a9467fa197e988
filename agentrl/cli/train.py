"""`agentrl train` and `agentrl eval`. All early checks run before torch is imported."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from agentrl.cli.compose import compose_config
from agentrl.cli.early import check_early
from agentrl.cli.places import check_saved
from agentrl.cli.resume import resumed_config
from agentrl.config import RunConfig
from agentrl.config.paths import absolute
from agentrl.config.rules.combinations import check_evaluation, check_training
from agentrl.config.validate import Check
from agentrl.errors import ConfigError
from agentrl.plan.memory.warning import memory_warning
from agentrl.run_folder.location import check_free

TRAINING_MODES = ("train", "train_only")


def train(options: argparse.Namespace) -> int:
    """Train a policy; the run is saved in `trainer.default_local_dir`. Return the exit status."""
    if options.resume:
        config = resumed_config(options)
    else:
        config = read_config(options, partial(check_training, groups_of_one=options.verl), check_early)
    check_free(absolute(config))
    if options.dry_run or options.explain:
        from agentrl.cli.dry_run import show_run  # may fetch the config.json of a model from the hub

        show_run(config, keys=options.dry_run, explain=options.explain)
        return 0
    if line := memory_warning(config):
        print(line, file=sys.stderr)
    if (config.uses_ray or config.trainer.num_processes > 1) and config.trainer.mode in TRAINING_MODES:
        from agentrl.cli.ranks.run import train_on_ranks  # imports torch

        return train_on_ranks(config)
    from agentrl.trainer.run import run_training  # imports torch and transformers

    run_training(config)
    return 0


def evaluate(options: argparse.Namespace) -> None:
    """Evaluate a model on `data.val_files`, saved rollouts (`--from`) or existing responses (`--responses`)."""
    if options.saved and options.responses:
        raise ConfigError.keyless("--from and --responses exclude each other: give one of them")
    check_saved(options)
    if options.saved:
        from agentrl.cli.eval.saved import evaluate_saved  # imports pyarrow

        evaluate_saved(options)
    elif options.responses:
        from agentrl.cli.eval.responses import evaluate_responses  # imports pyarrow

        evaluate_responses(options)
    else:
        _evaluate_model(options)


def _evaluate_model(options: argparse.Namespace) -> None:
    if flags := [f"--{name.replace('_', '-')}" for name in _OF_SAVED if getattr(options, name)]:
        raise ConfigError.keyless(
            f"{flags[0]} needs --from RUN or --responses FILE: to evaluate a model, use key=value"
        )
    config = read_config(options, check_evaluation, partial(check_early, purpose="eval"))
    from agentrl.trainer.run import run_evaluation  # imports torch and transformers

    run_evaluation(config)


def refuse_own_file(options: argparse.Namespace) -> None:
    """Refuse `--config` with `--verl`.

    Raises:
        ConfigError: both flags are given; the message names the flags to use instead.
    """
    if options.config:
        folder, name = options.config.parent, options.config.stem
        instead = f"with --verl use --config-dir {folder} --config-name {name}"
        raise ConfigError.keyless(f"--config reads agentrl's keys, not verl's: {instead}")


_OF_SAVED = ("split", "reward", "tokenizer", "response_key", "json")


def read_config(options: argparse.Namespace, *checks: Check) -> RunConfig:
    """Read and validate the configuration from the command line, in agentrl's or verl's keys.

    Raises:
        ConfigError: the configuration is invalid or not supported.
    """
    if options.verl:
        refuse_own_file(options)
        from agentrl.cli.verl.overrides import read_verl, verl_config  # loads the key table only if needed

        return verl_config(read_verl(options.overrides, options.config_dir, options.config_name), *checks)
    if options.config_name:
        raise ConfigError.keyless("--config-name needs --verl; without --verl use --config FILE or +experiment=NAME")
    if verls := [override for override in options.overrides if override.lstrip("+").startswith("actor_rollout_ref.")]:
        raise ConfigError.keyless(
            f"'{verls[0]}' is a verl key: add --verl, or use agentrl's actor, rollout, ref and model keys"
        )
    return compose_config(options.overrides, options.config_dir, *checks, file=options.config)
