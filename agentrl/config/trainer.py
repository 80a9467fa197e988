"""`trainer.*`: length of the run, validation, checkpoints and logging. `cluster.*`: the Ray cluster of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.config.base import Section, one_or_many
from agentrl.config.uses import ADDRESS, PLAIN, File, Folder, Text

LoggerName = Literal["console", "jsonl", "tensorboard", "wandb", "mlflow", "trackio"]
Profiler = Literal["torch", "nsys"]
Loggers = Annotated[tuple[LoggerName, ...], BeforeValidator(one_or_many), ADDRESS]


def _ours(mode: object) -> object:
    """Accept verl's name of the mode `path`."""
    return "path" if mode == "resume_path" else mode


ResumeMode = Annotated[Literal["auto", "disable", "path"], BeforeValidator(_ours)]


class StopWhen(Section):
    """Stop the run as soon as a validation metric reaches a value."""

    metric: Text
    """Name of the metric, such as val/success."""
    at_least: float
    """The value that the metric must reach."""


class TrainerConfig(Section):
    """Length of the run, validation, checkpoints and logging."""

    mode: Literal["train", "val_only", "rollout_only", "train_only"] = "train"
    """train: the full loop. val_only: validate and end. rollout_only: save rollouts without training. train_only: train
    on saved rollouts."""
    saved_rollouts: File | None = None
    """Rollouts for train_only: the folder of a run, or the folder of its trajectory files."""
    project_name: Text = "agentrl"
    """Project name, for trackers that have projects."""
    experiment_name: Folder = "default"
    """Name of the run."""
    default_local_dir: File | None = None
    """Folder of the run; null: a new folder `outputs/<experiment_name>/<date>-<time>`."""
    python_objects: tuple[Text, ...] = ()
    """Names of the Python objects (tools, rewards, ...) passed to `agentrl.train`, which alone sets this key."""
    seed: int = 0
    """Random seed of the run."""
    total_epochs: PositiveInt = 1
    """Passes over the training data, if total_training_steps is not given."""
    total_training_steps: PositiveInt | None = None
    """Number of steps; replaces total_epochs."""
    stop_when: StopWhen | None = None
    """Stop early when a validation metric reaches a value."""
    resume_mode: ResumeMode = "disable"
    """disable: a new run. auto: resume the run in default_local_dir, if there is one. path: resume from
    resume_from_path."""
    resume_from_path: File | None = None
    """Checkpoint for resume_mode=path. It may belong to another run. If it belongs to this run, the run's later steps
    are deleted."""
    max_staleness: NonNegativeInt = 0
    """Maximum staleness of a trained group, in policy versions. 0: on-policy; above 0: rollouts run during updates."""
    over_sampling: NonNegativeFloat = 0.0
    """Additional groups started per step, as a fraction of the step's groups. The slowest groups are stopped and their
    tasks requeued."""
    max_concurrent_rollouts: PositiveInt = 1024
    """Maximum number of concurrent rollouts."""
    critic_warmup: NonNegativeInt = 0
    """Number of first steps that train only the critic."""
    val_before_train: bool = True
    """Validate before the first step."""
    test_freq: NonNegativeInt = 0
    """Validate every N steps; 0: only at the end."""
    save_freq: NonNegativeInt = 0
    """Save a checkpoint every N steps; 0: no step-based checkpoints. More checkpoints are saved by save_interval_s
    and at the end of the run."""
    save_interval_s: PositiveFloat | None = 600.0
    """Save a checkpoint at the end of a step if the last one is at least this many seconds old; null: off."""
    max_checkpoints_to_keep: PositiveInt | None = 2
    """Number of newest checkpoints to keep; the best checkpoint is also kept if it is older. null: keep all."""
    async_save: bool = False
    """Write checkpoints in the background: the next step waits only until the state is copied to host memory."""
    save_best: Text | None = None
    """Validation metric, such as val/success: the checkpoint with the highest value is kept as checkpoints/best."""
    save_excluded: Literal["summary", "tokens", "none"] = "summary"
    """How excluded groups (no step trains on them) are saved. summary: one row per rollout with the reason and the
    rewards, without tokens, messages and tool calls. tokens: complete rollouts. none: not saved."""
    logger: Loggers = ("console", "jsonl")
    """Loggers; metrics.jsonl is always written. wandb, mlflow, trackio need `pip install 'agentrl-train[trackers]'`."""
    log_val_generations: NonNegativeInt = 0
    """Number of validation samples logged as text, to every logger except the console."""
    profile_steps: tuple[PositiveInt, ...] = ()
    """Steps that are profiled, with the tool named by trainer.profiler."""
    profiler: Profiler = "torch"
    """torch: torch.profiler writes profile/step-N.json to the run folder, and step-N-rank-R.json for each other
    process. nsys: start the run under `nsys profile --capture-range=cudaProfilerApi` (docs/multi-gpu.md); needs a CUDA
    GPU."""
    nnodes: PositiveInt = 1
    """Number of nodes that train. More than one needs Ray (docs/cluster.md), or `torchrun` on each node."""
    n_gpus_per_node: PositiveInt = 1
    """Number of devices, with one process each, that train on each node. Without GPUs: number of CPU processes."""
    max_restarts: NonNegativeInt = 0
    """With several processes or Ray: how many times a run may resume automatically after a process or a node failed."""
    num_threads: PositiveInt | None = 1
    """Number of CPU threads of torch; null: the default of torch."""

    @property
    def num_processes(self) -> int:
        """Number of processes that train, one per device."""
        return self.nnodes * self.n_gpus_per_node

    @property
    def run_dir(self) -> Path:
        """The run folder.

        Without `default_local_dir`, this is the parent of the run folder, until `run_folder.location.opened` chooses
        the run folder.
        """
        return self.default_local_dir or Path("outputs") / self.experiment_name


Resources = Annotated[dict[str, PositiveFloat], PLAIN]


class ClusterConfig(Section):
    """The Ray cluster, and the resources that a run needs on its nodes."""

    address: Annotated[str, ADDRESS] | None = None
    """Ray cluster: `auto` for the cluster of this machine, or host:port. null: with trainer.nnodes above 1, the cluster
    at RAY_ADDRESS or on this machine; otherwise Ray is not used."""
    cpus_per_process: PositiveFloat = 1.0
    """CPUs that Ray reserves for each training process."""
    cpus_per_server: PositiveFloat = 1.0
    """CPUs that Ray reserves for each SGLang server."""
    trainer_resources: Resources = {}
    """Custom Ray resources that each training node must have, such as {h100: 8}."""
    rollout_resources: Resources = {}
    """Custom Ray resources that the node of each SGLang server must have, such as {rollout: 1}."""
    num_tool_workers: NonNegativeInt = 0
    """Number of Ray workers that run the processes of tools (`isolation: process`) and rewards (reward.num_workers),
    anywhere on the cluster. 0: the processes run on the node of rank 0."""
    cpus_per_tool_worker: PositiveFloat = 1.0
    """CPUs that Ray reserves for each tool worker. For each tool, all workers together run up to 8 processes per
    reserved CPU."""
    tool_worker_resources: Resources = {}
    """Custom Ray resources that the node of each tool worker must have, such as {tools: 1}."""
    wait_s: PositiveFloat = 60.0
    """Seconds to wait for resources that are in use. A request that the cluster can never satisfy is refused."""
