"""Every subcommand: what it is for, what runs it, and the words and flags it takes."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    Attributes:
        target: `pkg.module:function`, called with the parsed options; loaded when the command is asked for.
        arguments: adds what it takes.
    """

    summary: str
    target: str
    arguments: Callable[[ArgumentParser], None]


def _run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="+experiment=NAME and key=value, in Hydra's grammar")
    parser.add_argument("--config-dir", "--config-path", type=Path, help="folder of your own YAML files")


def _verl_arguments(parser: ArgumentParser) -> None:
    _run_arguments(parser)
    parser.add_argument("--verl", action="store_true", help="keys, defaults and YAML files are verl's")
    parser.add_argument("--config-name", help="with --verl: YAML file in that folder, without its ending")


def _export_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a checkpoint's folder, or a run's: then its latest")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that the base ships with")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of an adapter merged in")


COMMANDS = {
    "train": Command("train a policy", "agentrl.cli.train:train", _verl_arguments),
    "eval": Command(
        "roll out a model on the validation files and report what it achieves",
        "agentrl.cli.train:evaluate",
        _verl_arguments,
    ),
    "config": Command("print every key with its default and what it means", "agentrl.cli.config:show", _run_arguments),
    "export": Command(
        "write a checkpoint as a model's folder, a LoRA adapter merged in",
        "agentrl.cli.export:export",
        _export_arguments,
    ),
}
