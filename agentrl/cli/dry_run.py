"""`agentrl train --dry-run` and `--explain`: check the configuration without a model, then show the run."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.config.model import ModelConfig
from agentrl.config.resolve import Choice, notices
from agentrl.run_folder.saved_config import leaves
from agentrl.trainer.builders.overview import overview
from agentrl.trainer.choices import choose


def show_run(config: RunConfig, *, keys: bool, explain: bool) -> None:
    """Show the run without starting it. Write nothing.

    Args:
        keys: print every key that differs from its default, and why a value was chosen automatically.
        explain: print the overview that a started run prints.
    """
    resolved, choices = choose(config)
    for line in notices(config):
        print(f"notice: {line}")
    if keys:
        _show_keys(resolved, choices)
    if explain:
        print(f"this run:\n{overview(resolved)}")
    print("nothing was written and no model was loaded")


def _show_keys(config: RunConfig, choices: Sequence[Choice]) -> None:
    reasons = {choice.key: f"  (chosen: {choice.reason})" for choice in choices}
    defaults = dict(leaves(redacted(RunConfig(model=ModelConfig(path="")))))
    print(f"would run {config.trainer.mode} with {config.algorithm.name}; keys with non-default values:")
    for key, value in leaves(redacted(config)):
        if key not in defaults or value != defaults[key]:
            print(f"  {key}={value}{reasons.get(key, '')}")
