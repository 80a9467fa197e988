"""Metrics of time and throughput."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Row

_CHART = "Time per step"

STEP_S = Metric(
    "timing_s/step",
    "s",
    "duration of the step, without validation and saving checkpoints",
    console=Row("speed", "{} s/step"),
    report=Line(_CHART, "step"),
    viewer=10,
)
COLLECT_S = Metric(
    "timing_s/collect",
    "s",
    "waiting for rollouts, if rollouts are synchronous",
    console=Row("speed", "collect {}"),
    report=Line(_CHART, "collect"),
)
CRITIC_S = Metric(
    "timing_s/critic",
    "s",
    "updates of the critic",
    console=Row("speed", "critic {}", 1),
    report=Line(_CHART, "critic"),
)
LEARN_S = Metric(
    "timing_s/learn",
    "s",
    "updates of the policy, or of the reward model that is trained alone",
    console=Row("speed", "learn {}", 1),
    report=Line(_CHART, "learn"),
)
REWARD_MODEL_S = Metric(
    "timing_s/reward_model",
    "s",
    "evaluation and updates of the online reward model",
    console=Row("speed", "reward model {}", 1),
    report=Line(_CHART, "reward model"),
)
PUBLISH_S = Metric("timing_s/publish", "s", "updates of the engine's weights", report=Line(_CHART, "publish"))
WAIT_ROLLOUTS_S = Metric(
    "timing_s/wait_rollouts",
    "s",
    "waiting for rollouts, if rollouts are asynchronous",
    console=Row("speed", "wait {}"),
    report=Line(_CHART, "wait for rollouts"),
)
SCORE_S = Metric("timing_s/score", "s", "computing log-probs (policy and reference policy) and values")
KL_CONTROLLER_S = Metric("timing_s/kl_controller", "s", "adapting the coefficient of the KL in the reward")
REFERENCE_SYNC_S = Metric("timing_s/reference_sync", "s", "copying the policy to the reference policy")
GPU_HANDOVER_S = Metric("timing_s/gpu_handover", "s", "`rollout.sglang.colocate`: the engine releases its GPU memory")
GPU_RETURN_S = Metric("timing_s/gpu_return", "s", "`rollout.sglang.colocate`: the engine gets its GPU memory back")
STORE_S = Metric("timing_s/store", "s", "saving rollouts")
VALIDATE_S = Metric("timing_s/validate", "s", "running the validation")
TOKENS_PER_S = Metric(
    "perf/tokens_per_s",
    "tokens/s",
    "tokens of the step's rollouts, prompts included, per second of `timing_s/step`",
    console=Row("speed", "{} tokens/s", 1),
    report=Line("Throughput", "training"),
)
