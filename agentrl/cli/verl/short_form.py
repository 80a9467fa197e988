"""Short form of verl's command line: `./train.sh --model PATH --lr 5e-7 …`, with flags and environment variables."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentrl.cli.main import finish
from agentrl.errors import ConfigError

_ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True, slots=True)
class Short:
    """A flag with its verl key, its environment variable and its default in the short form."""

    flag: str
    key: str
    read: Callable[[str], object] = str
    variable: str | None = None
    default: object = None
    help: str = ""


def truth(text: str) -> bool:
    """Parse a boolean such as true, 1, yes or on."""
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("true or false")
    return words[text.lower()]


SHORT = (
    Short("model", "actor_rollout_ref.model.path", help="folder of a model, or its name on the hub"),
    Short("train", "data.train_files", help="Parquet or JSON file to train on; default: train.* in this folder"),
    Short("val", "data.val_files", help="Parquet or JSON file to validate on"),
    Short("reward_func", "custom_reward_function.path", help="reward.py or reward.py:function (compute_score)"),
    Short("rollout_n", "actor_rollout_ref.rollout.n", int, "ROLLOUT_N", 8, "rollouts per prompt"),
    Short("batch_size", "data.train_batch_size", int, "TRAIN_BATCH_SIZE", 16, "prompts per step"),
    Short("epochs", "trainer.total_epochs", int, "TOTAL_EPOCHS", 1, "passes over the data"),
    Short("lr", f"{_ACTOR}.optim.lr", float, "LEARNING_RATE", 1e-6, "learning rate"),
    Short(
        "max_response_length", "data.max_response_length", int, "MAX_RESPONSE_LENGTH", 512, "tokens after the prompt"
    ),
    Short("kl_coef", "algorithm.kl_penalty", float, help="coefficient of a KL loss; turns the KL loss on"),
    Short("use_kl_loss", f"{_ACTOR}.use_kl_loss", truth, "USE_KL_LOSS"),
    Short("kl_loss_coef", f"{_ACTOR}.kl_loss_coef", float, "KL_LOSS_COEF"),
    Short("kl_loss_type", f"{_ACTOR}.kl_loss_type", str, "KL_LOSS_TYPE"),
    Short("norm_adv_by_std", "algorithm.norm_adv_by_std_in_grpo", truth, "NORM_ADV_BY_STD"),
    Short("n_gpus", "trainer.n_gpus_per_node", int, help="devices that train"),
    Short("name", "trainer.experiment_name", help="name of the run; its folder is outputs/<name>/<date>-<time>"),
)
_DATA = ("train.parquet", "train.jsonl", "train.json")
FIXED = {"algorithm.adv_estimator": "grpo", f"{_ACTOR}.ppo_mini_batch_size": None}  # None: one update per step


def main(arguments: Sequence[str] | None = None) -> int:
    """Train. Exit status 2 means a user error, as with `agentrl`."""
    options, rest = parser().parse_known_args(arguments)
    if flags := [word for word in rest if word.startswith("-")]:
        parser().error(f"unrecognized arguments: {' '.join(flags)}")
    return finish(lambda: train(options, rest))


def train(options: argparse.Namespace, rest: Sequence[str]) -> None:
    """Train with the values of flags, environment variables and `key=value` overrides."""
    from agentrl.cli.early import check_early
    from agentrl.cli.verl.overrides import read_verl, verl_config  # imports hydra
    from agentrl.compat.verl.keys.translate import flattened, nested
    from agentrl.config.rules.combinations import check_training

    said = dict(flattened(read_verl([*options.overrides, *rest])))
    values = defaults()
    for layer in (from_environment(os.environ), from_flags(options), said):
        values = _under(values, layer) | layer
    config = verl_config(nested(_with_data(values)), partial(check_training, groups_of_one=True), check_early)
    from agentrl.trainer.run import run_training  # imports torch and transformers

    run_training(config)


def _under(values: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Return the `values` that `above` does not replace. Example: --kl_coef replaces KL_LOSS_COEF and USE_KL_LOSS."""
    from agentrl.compat.verl.keys.table import PPO

    hidden = set().union(*map(PPO.targets, above))
    return {key: value for key, value in values.items() if not PPO.targets(key) or not PPO.targets(key) <= hidden}


def _with_data(values: dict[str, object]) -> dict[str, object]:
    """Add a training file of the current folder if `values` names no training file."""
    found = next((name for name in _DATA if Path(name).is_file()), None)
    if found is None or "data.train_files" in values:
        return values
    print(f"agentrl: notice: no --train is given: training on '{found}' of this folder", file=sys.stderr)
    return values | {"data.train_files": found}


def defaults() -> dict[str, object]:
    """Return the default values of the short form, under verl's keys."""
    return FIXED | {short.key: short.default for short in SHORT if short.default is not None}


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the values of environment variables, under verl's keys; empty variables are ignored.

    Raises:
        ConfigError: a value cannot be parsed.
    """
    return {s.key: _read(s, text) for s in SHORT if s.variable and (text := environment.get(s.variable))}


def from_flags(options: argparse.Namespace) -> dict[str, object]:
    """Return the values of flags, under verl's keys; `--reward_func file.py:name` also sets the function name."""
    values = {s.key: _read(s, text, flag=True) for s in SHORT if (text := getattr(options, s.flag)) is not None}
    file, separator, function = str(values.get("custom_reward_function.path", "")).rpartition(".py:")
    if separator:
        values |= {"custom_reward_function.path": f"{file}.py", "custom_reward_function.name": function}
    return values


def parser() -> argparse.ArgumentParser:
    """Build the parser; flags may have underscores or hyphens."""
    top = argparse.ArgumentParser(
        prog="train.sh", description="Train with GRPO; any verl key may follow.", allow_abbrev=False
    )
    top.add_argument("overrides", nargs="*", metavar="key=value", help="any verl key (docs/from-verl.md)")
    for short in SHORT:
        names = dict.fromkeys([f"--{short.flag}", f"--{short.flag.replace('_', '-')}"])
        notes = [short.help or short.key, f"default {short.default}" if short.default else "", short.variable or ""]
        top.add_argument(*names, dest=short.flag, metavar="X", help="; ".join(filter(None, notes)))
    return top


def _read(short: Short, text: str, flag: bool = False) -> object:
    try:
        return short.read(text)
    except ValueError:
        name = f"--{short.flag}" if flag else short.variable
        expected = "a whole number" if short.read is int else "a number" if short.read is float else "true or false"
        raise ConfigError.keyless(f"{name}: expected {expected}, got '{text}'") from None


if __name__ == "__main__":
    sys.exit(main())
