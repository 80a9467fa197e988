"""verl's `trainer.*` and the keys of its cluster start-up."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.compat.verl.keys.asynchronous import ASYNC
from agentrl.compat.verl.keys.data import expand_home
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, choices, one_of, truth
from agentrl.errors import ConfigError, suggestion

_LOGGERS = ("wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard", "console", "clearml", "trackio", "rl_insight")
_NO_RAY = "agentrl starts no Ray cluster; it connects to cluster.address"
_KEPT = "complete checkpoints are kept in the run's folder; trainer.max_actor_ckpt_to_keep sets how many"


def _every(value: object) -> int:
    """Read a frequency: verl's -1 (never) becomes 0."""
    return max(0, int(str(value)))


def read_loggers(value: object) -> tuple[str, ...]:
    """Return the named trackers that this version supports; jsonl is always included because the report needs it."""
    names = ["jsonl" if name == "file" else name for name in ([value] if isinstance(value, str) else _list(value))]
    valid = choices("trainer.logger")
    for name in names:
        if name not in valid and name not in _LOGGERS:
            raise ConfigError.keyless(f"unknown logger '{name}': {suggestion(str(name), {*valid, *_LOGGERS})}")
    return tuple(dict.fromkeys(name for name in [*names, "jsonl"] if name in valid))


def missing_loggers(value: object) -> list[str]:
    """Return the named trackers that verl supports but this version of agentrl does not."""
    names = [value] if isinstance(value, str) else _list(value)
    return [name for name in names if name in _LOGGERS and name not in choices("trainer.logger")]


def _list(value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        raise ConfigError.keyless(f"expected a name or a list of names, got {value!r}")
    return [str(item) for item in value]


def _mode(value: object) -> str:
    if (val_only := truth(value)) is None:
        raise ConfigError.keyless(f"expected true or false, got {value!r}")
    return "val_only" if val_only else "train"


def _checkpoint(value: object) -> str | None:
    return expand_home(value) if value else None


def _count(value: object) -> int | None:
    """Return how many checkpoints to keep; None means all. In verl, null, 0 and negative numbers mean all."""
    number = int(str(value or 0))
    return number if number > 0 else None


def _device(value: object) -> Mapping[str, object]:
    return {"actor.device": str(value), "rollout.device": str(value)}


TRAINER: tuple[Row, ...] = (
    Mapped(
        "trainer.total_epochs",
        "trainer.total_epochs",
        30,
        note="rows left at the end of an epoch start the next epoch; verl drops them",
    ),
    Mapped("trainer.total_training_steps", "trainer.total_training_steps"),
    Mapped("trainer.project_name", "trainer.project_name", "verl_examples"),
    Mapped("trainer.experiment_name", "trainer.experiment_name", "gsm8k"),
    Mapped(
        "trainer.default_local_dir",
        "trainer.default_local_dir",
        read=expand_home,
        note="the run's folder; default: a new one, outputs/<experiment_name>/<date>-<time>",
    ),
    Mapped(
        "trainer.logger",
        "trainer.logger",
        read=read_loggers,
        note="a name or a list; metrics.jsonl (file) is always written; unsupported loggers are dropped",
    ),
    Mapped("trainer.save_freq", "trainer.save_freq", -1, _every, "-1 becomes 0: only at the end"),
    Mapped("trainer.test_freq", "trainer.test_freq", -1, _every, "-1 becomes 0: only at the end"),
    Mapped("trainer.log_val_generations", "trainer.log_val_generations", 0),
    *(
        Mapped(key, "trainer.profile_steps", note="the steps that are profiled")
        for key in ("trainer.profile_steps", "global_profiler.steps")
    ),
    Mapped(
        "global_profiler.tool",
        "trainer.profiler",
        read=one_of("trainer.profiler", {"None": "torch"}),
        note="null becomes torch; for nsys, start the run under nsys (docs/multi-gpu.md)",
    ),
    Mapped("trainer.val_before_train", "trainer.val_before_train", True),
    Mapped(
        "trainer.resume_mode",
        "trainer.resume_mode",
        "auto",
        one_of("trainer.resume_mode", {"resume_path": "path"}),
        "resume_path becomes path; without default_local_dir there is nothing to resume",
    ),
    Mapped(
        "trainer.resume_from_path",
        "trainer.resume_from_path",
        read=_checkpoint,
        note="a folder checkpoints/step-N of a run; has no effect without resume_mode=resume_path",
    ),
    *(
        Mapped(
            key, "trainer.max_checkpoints_to_keep", read=_count, note="the best checkpoint is always kept; 0 keeps all"
        )
        for key in ("trainer.max_actor_ckpt_to_keep", "trainer.max_ckpt_to_keep")
    ),
    Mapped(
        "trainer.device",
        ("actor.device", "rollout.device"),
        read=_device,
        note="default: a CUDA GPU if there is one, else the CPU",
    ),
    Mapped("trainer.n_gpus_per_node", "trainer.n_gpus_per_node", note="one process per device trains"),
    Mapped("trainer.nnodes", "trainer.nnodes", note="nodes that train; more than one needs Ray (docs/cluster.md)"),
    *(
        Fixed(f"skip.{part}.enable", (False,), "remove it: every step runs new rollouts")
        for part in ("rollout", "rollout_tq", "async_rollout")
    ),
    Hint("skip.*", "no effect if enable is false"),
    Mapped(
        "trainer.val_only",
        "trainer.mode",
        read=_mode,
        note="true becomes trainer.mode=val_only: validate once, then end",
    ),
    Fixed("trainer.v1.trainer_mode", (None, "sync"), "remove it and set trainer.max_staleness=1"),
    *ASYNC,
    Fixed("trainer.checkpoint_callback_class", (None,), "remove it"),
    Hint("trainer.v1.*", "agentrl has only one trainer"),
    Hint("trainer.use_v1", "agentrl has only one trainer"),
    Hint("trainer.use_legacy_worker_impl", "agentrl has only one trainer"),
    Hint("trainer.balance_batch", "tokens are always balanced over the processes"),
    *(
        Hint(f"trainer.{key}", "a run's samples.json and report.html show rollouts")
        for key in ("rollout_data_dir", "validation_data_dir")
    ),
    *(
        Hint(f"trainer.{key}", _KEPT)
        for key in (
            "max_critic_ckpt_to_keep",
            "del_local_ckpt_after_load",
            "remove_previous_ckpt_in_save",
            "default_hdfs_dir",
            "esi_redundant_time",
        )
    ),
    *(
        Hint(key, _NO_RAY)
        for key in (
            "trainer.ray_wait_register_center_timeout",
            "ray_kwargs.*",
            "ray_init.*",
            "transfer_queue.*",
            "actor_rollout_ref.hybrid_engine",
            "actor_rollout_ref.nccl_timeout",
        )
    ),
    *(Hint(key, "a profiler that only verl has") for key in ("global_profiler.*", "trainer.npu_profile.*")),
    Hint("hydra.*", "trainer.default_local_dir sets the run's folder"),
)
