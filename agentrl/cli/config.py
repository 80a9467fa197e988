"""`agentrl config`: print all keys, keys that contain a word, or the configuration of an experiment."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.text import Text

from agentrl.cli.compose import compose_config
from agentrl.cli.hints import key_for
from agentrl.config.document import describe_config, redacted
from agentrl.config.presets import PRESETS
from agentrl.errors import ConfigError, suggestion
from agentrl.utils.yaml_text import yaml_text


def show(options: argparse.Namespace) -> None:
    """Describe keys (`agentrl config [word]`) or print a configuration (`agentrl config +experiment=x …`)."""
    if any("=" in override for override in options.overrides):
        print(yaml_text(redacted(compose_config(options.overrides, options.config_dir))), end="")
    else:
        describe(options.overrides)


def describe(words: list[str]) -> None:
    """Print default and description of the keys whose name contains all words; if there are none, search descriptions.

    Raises:
        ConfigError: no key matches.
    """
    entries = list(describe_config())
    words_lower = [part.lower() for word in words for part in word.split()]
    chosen = [entry for entry in entries if all(word in entry[0] for word in words_lower)]
    same_key = key_for("_".join(words_lower)) if words_lower else None
    chosen += [entry for entry in entries if entry[0] == same_key and entry not in chosen]
    chosen = chosen or [
        entry for entry in entries if all(part in _text(entry) for word in words_lower for part in _parts(word))
    ]
    if not chosen:
        raise ConfigError.keyless(
            f"no key contains '{' '.join(words)}': {suggestion(words[0], [key for key, _, _ in entries])}"
        )
    console = Console(soft_wrap=True, highlight=False)
    for key, default, sentence in chosen:
        console.print(Text.assemble((key, "bold cyan"), " = ", (default, "green"), f"\n    {sentence}"))
        if words and key == "algorithm.name":
            console.print(Text("\n".join(f"    {name:<29}{preset.summary}" for name, preset in PRESETS.items())))


def _text(entry: tuple[str, str, str]) -> str:
    key, _, sentence = entry
    return f"{key} {sentence}".lower()


def _parts(word: str) -> list[str]:
    return word.replace("_", " ").replace("-", " ").split()
