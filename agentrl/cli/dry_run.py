"""`agentrl train --dry-run`: show the configuration that would run, after all checks that need no model."""

from __future__ import annotations

from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.config.model import ModelConfig
from agentrl.config.resolve import notices
from agentrl.run_folder.saved_config import leaves
from agentrl.trainer.choices import choose


def show_run(config: RunConfig) -> None:
    """Print every key that differs from its default, with the reason if the run chose it. Write nothing."""
    resolved, choices = choose(config)
    reasons = {choice.key: f"  (chosen: {choice.reason})" for choice in choices}
    defaults = dict(leaves(redacted(RunConfig(model=ModelConfig(path="")))))
    for line in notices(config):
        print(f"notice: {line}")
    print(f"would run {config.trainer.mode} with {config.algorithm.name}; keys with non-default values:")
    for key, value in leaves(redacted(resolved)):
        if key not in defaults or value != defaults[key]:
            print(f"  {key}={value}{reasons.get(key, '')}")
    print("nothing was written and no model was loaded")
