"""Metrics of time and throughput."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Row

_CHART = "Time per step"

STEP_S = Metric(
    "timing_s/step",
    "s",
    "duration of the step",
    console=Row("speed", "{} s/step"),
    report=Line(_CHART, "step"),
    viewer=10,
)
COLLECT_S = Metric(
    "timing_s/collect",
    "s",
    "waiting for rollouts, at staleness 0",
    console=Row("speed", "collect {}"),
    report=Line(_CHART, "collect"),
)
LEARN_S = Metric(
    "timing_s/learn",
    "s",
    "updates of the policy only",
    console=Row("speed", "learn {}", 1),
    report=Line(_CHART, "learn"),
)
PUBLISH_S = Metric("timing_s/publish", "s", "updates of the engine's weights", report=Line(_CHART, "publish"))
WAIT_ROLLOUTS_S = Metric(
    "timing_s/wait_rollouts",
    "s",
    "waiting for rollouts, with staleness",
    console=Row("speed", "wait {}"),
    report=Line(_CHART, "wait for rollouts"),
)
SCORE_S = Metric("timing_s/score", "s", "log-probs of the policy and the reference policy, and values")
CRITIC_S = Metric("timing_s/critic", "s", "updates of the critic")
REWARD_MODEL_S = Metric("timing_s/reward_model", "s", "updates of the reward model beside the policy")
KL_CONTROLLER_S = Metric("timing_s/kl_controller", "s", "adapting the coefficient of the KL in the reward")
REFERENCE_SYNC_S = Metric("timing_s/reference_sync", "s", "copying the policy to the reference policy")
GPU_HANDOVER_S = Metric("timing_s/gpu_handover", "s", "moving the GPU's memory between engine and trainer")
STORE_S = Metric("timing_s/store", "s", "saving rollouts")
VALIDATE_S = Metric("timing_s/validate", "s", "running the validation")
TOKENS_PER_S = Metric(
    "perf/tokens_per_s",
    "tokens/s",
    "tokens of the step's rollouts, prompts included, per second",
    console=Row("speed", "{} tokens/s", 1),
    report=Line("Throughput", "training"),
)
