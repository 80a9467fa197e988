"""Metrics of the critic."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Range, Row

EXPLAINED_VAR = Metric(
    "critic/vf_explained_var",
    "share",
    "share of the returns' variance that the values explain",
    healthy=Range(lowest=0),
    console=Row("critic", "{} explained"),
    report=Line("Variance explained by the critic", "of the returns"),
)
VF_LOSS = Metric(
    "critic/vf_loss", "", "loss of the critic", console=Row("critic", "loss {}"), report=Line("Loss", "critic")
)
VF_CLIPPED = Metric("critic/vf_clipfrac", "share", "tokens whose loss uses the clipped value")
VALUE_MEAN = Metric("critic/vpred_mean", "", "mean predicted value")
CRITIC_GRAD_NORM = Metric(
    "critic/grad_norm",
    "",
    "norm of the critic's gradient before clipping",
    report=Line("Gradient norm", "critic"),
)
CRITIC_LEARNING_RATE = Metric(
    "critic/lr",
    "",
    "learning rate of the critic",
    console=Row("critic", "lr {}"),
    report=Line("Learning rate", "critic"),
)
CRITIC_UPDATES = Metric("critic/updates", "", "optimizer steps of the critic")
CRITIC_SKIPPED_UPDATES = Metric("critic/skipped_updates", "", "optimizer steps of the critic that were skipped")
CRITIC_NUM_TOKENS = Metric("critic/num_tokens", "tokens", "tokens that the critic is trained on")
CRITIC_RANK_IMBALANCE = Metric(
    "critic/rank_imbalance", "", "critic: largest number of tokens on a process, divided by the mean over all processes"
)
CRITIC_NUM_MICRO_BATCHES = Metric("critic/num_micro_batches", "", "micro-batches of the critic")
CRITIC_REPLAYED = Metric("critic/replayed_share", "share", "tokens whose recorded experts were replayed in the critic")
