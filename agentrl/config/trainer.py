"""`trainer.*`: how long, how often, where to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, NonNegativeFloat, NonNegativeInt, PositiveInt

from agentrl.config.base import Section, one_or_many

LoggerName = Literal["console", "jsonl", "tensorboard", "wandb", "mlflow", "trackio"]
Loggers = Annotated[tuple[LoggerName, ...], BeforeValidator(one_or_many)]


def _ours(mode: object) -> object:
    """verl's name for a mode is taken as well."""
    return "path" if mode == "resume_path" else mode


ResumeMode = Annotated[Literal["auto", "disable", "path"], BeforeValidator(_ours)]


class StopWhen(Section):
    """Ends the run as soon as a validation metric is good enough."""

    metric: str
    """Name of the metric, such as val/success."""
    at_least: float
    """The value it must reach."""


class TrainerConfig(Section):
    """How long, how often, where to."""

    mode: Literal["train", "val_only", "rollout_only", "train_only"] = "train"
    """val_only validates and ends; rollout_only saves rollouts without training; train_only trains on saved ones."""
    saved_rollouts: Path | None = None
    """What train_only trains on: a run's folder, or the folder of its trajectory files."""
    project_name: str = "agentrl"
    """What the run belongs to, in trackers that know projects."""
    experiment_name: str = "default"
    """Name of the run."""
    default_local_dir: Path | None = None
    """Folder of the run; outputs/<experiment_name> if none is given."""
    seed: int = 0
    """Seed of everything random."""
    total_epochs: PositiveInt = 1
    """Passes over the training data, where total_training_steps is not given."""
    total_training_steps: PositiveInt | None = None
    """Steps; takes the place of total_epochs."""
    stop_when: StopWhen | None = None
    """End earlier, when validation says so."""
    resume_mode: ResumeMode = "auto"
    """auto: from the newest whole checkpoint, if any; path: from resume_from_path; disable: never in a run's folder."""
    resume_from_path: Path | None = None
    """Checkpoint to go on from under resume_mode=path, of this run (later steps are dropped) or of another."""
    max_staleness: NonNegativeInt = 0
    """Policy versions a group may lag behind when it is trained on; 0 is on-policy, above 0 rollouts never wait."""
    over_sampling: NonNegativeFloat = 0.0
    """Groups begun beyond what a step takes, as a share of it: the slowest are cut off, and their tasks begun again."""
    max_concurrent_rollouts: PositiveInt = 1024
    """Most rollouts under way at a time."""
    critic_warmup: NonNegativeInt = 0
    """First steps that train the critic alone."""
    val_before_train: bool = True
    """Validate before the first step."""
    test_freq: NonNegativeInt = 0
    """Validate every so many steps; 0 only at the end, if at all."""
    save_freq: NonNegativeInt = 0
    """Save a checkpoint every so many steps; 0 only at the end."""
    max_checkpoints_to_keep: PositiveInt | None = None
    """Checkpoints to keep, the newest, and the best if it is older; null keeps all."""
    save_best: str | None = None
    """Validation metric, such as val/success: the step where it is highest is kept as checkpoints/best."""
    logger: Loggers = ("console", "jsonl")
    """Where metrics go besides metrics.jsonl; wandb, mlflow and trackio need `pip install 'agentrl[trackers]'`."""
    log_val_generations: NonNegativeInt = 0
    """Validation samples that are logged as text, to every logger but the console."""
    profile_steps: tuple[PositiveInt, ...] = ()
    """Steps whose torch.profiler trace is written to profile/step-N.json in the run's folder."""
    num_threads: PositiveInt | None = 1
    """Threads torch may use on the CPU; null leaves torch's own choice."""

    @property
    def run_dir(self) -> Path:
        """The folder everything of this run is written under."""
        return self.default_local_dir or Path("outputs") / self.experiment_name
