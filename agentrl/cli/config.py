"""`agentrl config`: every key, or those that contain a word, or the resolved configuration of an experiment."""

from __future__ import annotations

import argparse

import yaml
from rich.console import Console
from rich.text import Text

from agentrl.cli.compose import compose_config
from agentrl.config.document import describe_config, redacted
from agentrl.config.presets import PRESETS
from agentrl.errors import ConfigError, suggestion


def show(options: argparse.Namespace) -> None:
    """`agentrl config [word]` describes keys; `agentrl config +experiment=x …` prints what would be run."""
    if any("=" in override for override in options.overrides):
        print(yaml.safe_dump(redacted(compose_config(options.overrides, options.config_dir)), sort_keys=False), end="")
    else:
        describe(options.overrides)


def describe(words: list[str]) -> None:
    """Print the keys that contain every word, each with its default and sentence.

    Raises:
        ConfigError: no key does.
    """
    entries = list(describe_config())
    chosen = [entry for entry in entries if all(word in entry[0] for word in words)]
    if not chosen:
        raise ConfigError(
            f"no key contains '{' '.join(words)}': {suggestion(words[0], [key for key, _, _ in entries])}"
        )
    console = Console(soft_wrap=True, highlight=False)
    for key, default, sentence in chosen:
        console.print(Text.assemble((key, "bold cyan"), " = ", (default, "green"), f"\n    {sentence}"))
        if words and key == "algorithm.name":
            console.print(Text("\n".join(f"    {name:<29}{preset.summary}" for name, preset in PRESETS.items())))
