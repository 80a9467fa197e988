"""Metrics of a reward model that is trained, alone or together with the policy."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Metric, Range

WARMING = Metric("reward_model/warming_up", "", "1 during warm-up, while the outcome is used as the score; then 0")
ACCURACY = Metric(
    "reward_model/accuracy",
    "share",
    "fresh rollouts (not yet trained on) whose outcome the reward model predicts correctly",
    healthy=Range(lowest=0.6),
)
AUC = Metric("reward_model/auc", "", "area under the ROC curve on the fresh rollouts")
ECE = Metric("reward_model/ece", "", "expected calibration error on the fresh rollouts", healthy=Range(highest=0.2))
BRIER = Metric("reward_model/brier", "", "Brier score on the fresh rollouts")
DRIFT = Metric(
    "reward_model/drift",
    "",
    "held-out rows or rollouts: 1 minus the rank correlation between current and previous scores",
    healthy=Range(highest=0.5),
)
SCORE_MEAN = Metric("reward_model/score_mean", "", "mean score of the held-out rows or rollouts")
SCORE_STD = Metric("reward_model/score_std", "", "standard deviation of the scores of the held-out rows or rollouts")
LOSS = Metric("reward_model/loss", "", "loss of the reward model")
GRAD_NORM = Metric("reward_model/grad_norm", "", "norm of the reward model's gradient before clipping")
LEARNING_RATE = Metric("reward_model/lr", "", "learning rate of the reward model")
UPDATES = Metric("reward_model/updates", "", "optimizer steps of the reward model")
SKIPPED_UPDATES = Metric("reward_model/skipped_updates", "", "optimizer steps of the reward model that were skipped")
