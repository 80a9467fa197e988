"""verl's `async_training.*`, for its fully asynchronous and one-step-off trainers."""

from __future__ import annotations

import math

from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, truth

_EVERY_STEP = "set it to 1: weights are published after every step; data.train_batch_size says how much a step takes"
_ASYNC = "async_training"


def _staleness(share: object) -> int:
    return math.ceil(float(str(share)))


def _update_mode(partial: object) -> str:
    return "drain" if truth(partial) is False else "retract"


def _bypass(compute_prox: object) -> bool:
    return truth(compute_prox) is not True


ASYNC: tuple[Row, ...] = (
    Mapped(
        f"{_ASYNC}.staleness_threshold",
        "trainer.max_staleness",
        read=_staleness,
        note="a share of a step's samples there, whole policy versions here: 0.1 becomes 1",
    ),
    Mapped(
        f"{_ASYNC}.partial_rollout",
        "rollout.weight_update_mode",
        read=_update_mode,
        note="true: turns go on with the new weights (retract); false: each ends first (drain)",
    ),
    Mapped(
        f"{_ASYNC}.compute_prox_log_prob",
        "algorithm.rollout_correction.bypass_mode",
        read=_bypass,
        note="true is bypass_mode=false",
    ),
    Mapped("actor_rollout_ref.actor.use_rollout_log_probs", "algorithm.rollout_correction.bypass_mode"),
    *(Fixed(f"{_ASYNC}.{key}", (1,), _EVERY_STEP) for key in ("trigger_parameter_sync_step", "require_batches")),
    Fixed(f"{_ASYNC}.use_dynamic_resource_scheduling", (False,), "leave it out: every device keeps its task"),
    Hint(f"{_ASYNC}.concurrent_samples_per_replica", "trainer.max_concurrent_rollouts bounds all that is in flight"),
    Hint(f"{_ASYNC}.*", "there is one trainer; trainer.max_staleness says how far rollouts may run ahead"),
    *(
        Hint(f"rollout.{key}", "rollouts run where training runs, or on the servers of rollout.sglang.urls")
        for key in ("nnodes", "n_gpus_per_node")
    ),
    Fixed("rollout.total_rollout_steps", (None,), "leave it out: trainer.total_training_steps says where the run ends"),
)
