"""verl's `async_training.*`, for its fully asynchronous and one-step-off trainers."""

from __future__ import annotations

import math

from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, truth

_EVERY_STEP = "set it to 1: weights are published after every step; data.train_batch_size is the size of a step"
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
        note="verl counts a fraction of a step's samples, agentrl counts policy versions; the value is rounded up: 0.1 "
        "becomes 1",
    ),
    Mapped(
        f"{_ASYNC}.partial_rollout",
        "rollout.weight_update_mode",
        read=_update_mode,
        note="true: running turns continue with the new weights (retract); false: running turns end first (drain)",
    ),
    Mapped(
        f"{_ASYNC}.compute_prox_log_prob",
        "algorithm.rollout_correction.bypass_mode",
        read=_bypass,
        note="true becomes bypass_mode=false",
    ),
    Mapped("actor_rollout_ref.actor.use_rollout_log_probs", "algorithm.rollout_correction.bypass_mode"),
    *(Fixed(f"{_ASYNC}.{key}", (1,), _EVERY_STEP) for key in ("trigger_parameter_sync_step", "require_batches")),
    Fixed(f"{_ASYNC}.use_dynamic_resource_scheduling", (False,), "remove it: every device keeps its role"),
    Hint(
        f"{_ASYNC}.concurrent_samples_per_replica",
        "use trainer.max_concurrent_rollouts, which limits all running rollouts",
    ),
    Hint(f"{_ASYNC}.*", "agentrl has only one trainer; trainer.max_staleness limits how far rollouts run ahead"),
    *(
        Hint(f"rollout.{key}", "SGLang servers are placed one by one: set rollout.sglang.num_replicas")
        for key in ("nnodes", "n_gpus_per_node")
    ),
    Fixed("rollout.total_rollout_steps", (None,), "remove it: trainer.total_training_steps sets the end of the run"),
)
