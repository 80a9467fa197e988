"""`agentrl train --explain`: show the components of the run, as a started run shows them."""

from __future__ import annotations

from agentrl.config import RunConfig
from agentrl.trainer.builders.overview import overview
from agentrl.trainer.choices import choose


def explain_run(config: RunConfig) -> None:
    """Print the overview of the run. Write nothing and load no model."""
    resolved, _ = choose(config)
    print(f"this run:\n{overview(resolved)}")
    print("nothing was written and no model was loaded")
