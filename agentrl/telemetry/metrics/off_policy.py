"""Metrics of the difference between sampling and training."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Range, Row

WEIGHT_MEAN = Metric("correction/weight_mean", "", "mean importance weight before normalisation")
WEIGHT_MAX = Metric("correction/weight_max", "", "largest importance weight")
WEIGHT_MIN = Metric("correction/weight_min", "", "smallest importance weight")
WEIGHT_ESS = Metric("correction/ess", "share", "effective sample size divided by the number of importance weights")
TRUNCATED = Metric("correction/truncated", "share", "importance weights truncated at the bound")
MASKED = Metric("correction/masked", "share", "importance weights outside the bounds, set to 0")
REJECTED_TOKENS = Metric("correction/rejected_tokens", "share", "tokens removed by rejection")
REJECTED_ROLLOUTS = Metric("correction/rejected_rollouts", "share", "rollouts removed by rejection")
MISMATCH_MEAN = Metric("mismatch/mean", "nats", "mean absolute difference of log-probs between engine and backend")
MISMATCH_MAX = Metric("mismatch/max", "nats", "largest absolute difference of log-probs between engine and backend")
MISMATCH_K3 = Metric("mismatch/k3", "nats", "k3 estimate of KL(engine, backend) per token")
MISMATCH_ABOVE = Metric("mismatch/share_above", "share", "tokens whose log-probs differ by more than 0.1 nats")
MISMATCH_RATIO = Metric("mismatch/ratio_mean", "", "mean ratio of backend to engine probability")
MISMATCH_ESS = Metric(
    "mismatch/ess",
    "share",
    "effective sample size of the ratios of backend to engine probability, divided by the number of tokens",
)
CURRENT_SHARE = Metric("mismatch/current/share", "share", "tokens that the current policy version sampled")
CURRENT_MEAN = Metric(
    "mismatch/current/mean",
    "nats",
    "`mismatch/mean` of the tokens that the current policy version sampled",
    report=Line("Mismatch of engine and trainer", "mean"),
)
CURRENT_MAX = Metric(
    "mismatch/current/max", "nats", "`mismatch/max` of the tokens that the current policy version sampled"
)
CURRENT_K3 = Metric(
    "mismatch/current/k3",
    "nats",
    "`mismatch/k3` of the tokens that the current policy version sampled",
    healthy=Range(highest=0.01),
    console=Row("engine", "{} nats from the backend", 1),
    report=Line("Mismatch of engine and trainer", "k3"),
)
OLDER_SHARE = Metric("mismatch/older/share", "share", "tokens that older policy versions sampled")
OLDER_MEAN = Metric("mismatch/older/mean", "nats", "`mismatch/mean` of the tokens that older policy versions sampled")
OLDER_MAX = Metric("mismatch/older/max", "nats", "`mismatch/max` of the tokens that older policy versions sampled")
OLDER_K3 = Metric("mismatch/older/k3", "nats", "`mismatch/k3` of the tokens that older policy versions sampled")
