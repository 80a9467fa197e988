"""Metrics of validation. Most metrics of rollouts, rewards and harnesses also exist as `val/<metric>`."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Row

OF_VALIDATION = Metric(
    "val/<metric>",
    "",
    "a metric of rewards, rollouts or harnesses, computed from the validation rollouts; `rollout/excluded/<reason>` is"
    " not computed for them",
)
VAL_REWARD = Metric(
    "val/reward/mean",
    "score",
    "mean score of the validation rollouts",
    console=Row("val reward"),
    report=Line("Reward", "held-out"),
    viewer=4,
)
VAL_SUCCESS = Metric(
    "val/success",
    "share",
    "validation rollouts whose score reaches `reward.success_threshold`",
    console=Row("val success"),
    report=Line("Success", "held-out"),
    viewer=3,
)
VAL_RESPONSE_LENGTH = Metric(
    "val/response_length/mean",
    "tokens",
    "mean number of tokens after the prompt, per validation rollout",
    report=Line("Response length", "held-out"),
)
VAL_NUM_TURNS = Metric(
    "val/num_turns/mean", "turns", "mean number of model turns per validation rollout", report=Line("Turns", "held-out")
)
VAL_DROPPED = Metric(
    "val/rollouts/dropped",
    "share",
    "validation rollouts that failed; most other metrics exclude them",
    report=Line("Dropped rollouts", "held-out"),
)
VAL_NUM_TASKS = Metric("val/num_tasks", "tasks", "validation tasks")
VAL_LOSS = Metric("val/loss", "", "reward models: loss on the validation rows", report=Line("Loss", "held-out"))
VAL_ACCURACY = Metric("val/accuracy", "share", "reward models: validation rows that are judged correctly")
VAL_MARGIN = Metric("val/margin", "", "reward models: score of the chosen minus score of the rejected answers")
VAL_NUM_PAIRS = Metric("val/num_pairs", "pairs", "reward models: validation pairs")
VAL_ECE = Metric("val/ece", "", "reward models: expected calibration error of the predicted probabilities")
VAL_BRIER = Metric("val/brier", "", "reward models: Brier score of the predicted probabilities")
VAL_AUC = Metric("val/auc", "", "reward models: area under the ROC curve")
VAL_MSE = Metric("val/mse", "", "reward models: mean squared error of the predicted label")
VAL_RANK_CORRELATION = Metric("val/rank_correlation", "", "reward models: Spearman correlation of scores and labels")
