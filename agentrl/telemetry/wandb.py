"""Weights & Biases tracker. Environment variables of wandb (WANDB_MODE=offline, WANDB_API_KEY, …) apply."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import wandb

from agentrl.errors import ConfigError, Kind
from agentrl.telemetry.base import Generation, TrackedRun, as_table


class WandbTracker:
    """One wandb run, saved locally in `<run>/wandb`; a resumed run keeps its id.

    Raises:
        ConfigError: wandb cannot start, for example without an API key.
    """

    def __init__(self, run: TrackedRun) -> None:
        run_id = run.kept_id("wandb", lambda: secrets.token_hex(4))
        try:
            self._run = wandb.init(
                project=run.project,
                name=run.name,
                id=run_id,
                resume="allow",
                dir=str(run.folder),
                config=dict(run.config),
                settings=wandb.Settings(console="off"),  # the live panel on the console would fill wandb's log
            )
        except wandb.Error as error:
            raise ConfigError.at(
                "trainer.logger",
                Kind.WRONG_VALUE,
                f"`trainer.logger`: wandb cannot start: {' '.join(str(error).split())}",
            ) from error
        # plot over the key `step`: wandb's built-in step can only grow, so wandb would drop steps that a resume repeats
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log({**metrics, "step": step})

    def log_generations(self, step: int, generations: Sequence[Generation]) -> None:
        """Log a table."""
        columns, rows = as_table(generations)
        self._run.log({"val/generations": wandb.Table(columns=columns, data=rows), "step": step})

    def log_warning(self, step: int, text: str) -> None:
        """Send an alert of wandb with the warning."""
        self._run.alert(title=f"step {step}", text=text)

    def close(self) -> None:
        """Upload buffered data and finish the run."""
        self._run.finish()


open_tracker = WandbTracker
