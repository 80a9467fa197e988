"""Metrics of the policy's updates."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Range, Row

LOSS = Metric("actor/loss", "", "loss of the policy", console=Row("loss"), report=Line("Loss", "training"), viewer=9)
GRAD_NORM = Metric(
    "actor/grad_norm",
    "",
    "norm of the gradient before clipping",
    console=Row("update", "grad norm {}"),
    report=Line("Gradient norm", "before clipping"),
    viewer=8,
)
LEARNING_RATE = Metric(
    "actor/lr",
    "",
    "learning rate of the policy",
    console=Row("update", "lr {}"),
    report=Line("Learning rate", "policy"),
)
ENTROPY = Metric(
    "actor/entropy",
    "nats",
    "mean entropy of the policy at the trained tokens",
    report=Line("Entropy", "policy"),
    viewer=7,
)
PPO_KL = Metric(
    "actor/ppo_kl",
    "nats",
    "mean over trained tokens of (log-prob under the old policy minus current log-prob); the old policy is the one in"
    " the denominator of the loss's probability ratios",
    healthy=Range(highest=0.1),
    report=Line("KL divergence", "to the old policy"),
)
CLIPPED = Metric(
    "actor/pg_clipfrac",
    "share",
    "trained tokens whose ratio was clipped",
    healthy=Range(highest=0.3),
    report=Line("Clipped tokens", "by the clip"),
)
CLIPPED_LOWER = Metric(
    "actor/pg_clipfrac_lower",
    "share",
    "trained tokens with negative advantage whose ratio is above `actor.clip_ratio_c` (dual clip)",
    report=Line("Clipped tokens", "by the dual clip"),
)
KL_LOSS = Metric(
    "actor/kl_loss",
    "nats",
    "mean KL to the reference policy over trained tokens, before `actor.kl_loss_coef`",
    report=Line("KL divergence", "to the reference"),
)
NUM_TOKENS = Metric("actor/num_tokens", "tokens", "trained tokens")
NUM_MICRO_BATCHES = Metric("actor/num_micro_batches", "", "micro-batches of the step")
UPDATES = Metric("actor/updates", "", "optimizer steps in this training step")
SKIPPED_UPDATES = Metric(
    "actor/skipped_updates",
    "",
    "optimizer steps skipped: gradient not finite, or no trained token",
    healthy=Range(0, 0),
)
ACCURACY = Metric(
    "actor/accuracy",
    "share",
    "pairs whose chosen answer has the higher implicit reward or score; for labels: correct predictions",
    console=Row("preference", "{} right"),
    report=Line("Pairs ranked correctly", "training"),
)
MARGIN = Metric(
    "actor/margin",
    "",
    "implicit reward or score of the chosen answers minus that of the rejected answers",
    console=Row("preference", "margin {}"),
    report=Line("Preference", "margin"),
)
CHOSEN = Metric(
    "actor/chosen_rewards",
    "",
    "preference losses: implicit reward of the chosen answers",
    report=Line("Preference", "chosen"),
)
REJECTED = Metric(
    "actor/rejected_rewards",
    "",
    "preference losses: implicit reward of the rejected answers",
    report=Line("Preference", "rejected"),
)
REPLAYED = Metric(
    "actor/replayed_share",
    "share",
    "tokens whose recorded experts were replayed (`rollout.routed_experts`, `actor.routed_experts`)",
    healthy=Range(lowest=0.9),
)
MOE_AUX_LOSS = Metric(
    "actor/moe_aux_loss",
    "",
    "load-balancing loss (`actor.megatron.moe_aux_loss_coeff`) before its coefficient, mean over layers; 1 is balanced",
)
MOE_Z_LOSS = Metric(
    "actor/moe_z_loss",
    "",
    "z-loss of the routers (`actor.megatron.moe_z_loss_coeff`) before its coefficient, mean over layers",
)
MTP_LOSS = Metric(
    "actor/mtp_loss",
    "nats",
    "cross entropy of the multi-token prediction layers on the trained tokens"
    " (`actor.megatron.mtp_loss_scaling_factor`), mean over these layers",
)
RANK_IMBALANCE = Metric(
    "actor/rank_imbalance",
    "",
    "largest number of tokens on a process, divided by the mean over all processes",
)
RATIO_MEAN = Metric(
    "actor/ratio_mean",
    "",
    "mean ratio of the current probability to the probability under the old policy (see `actor/ppo_kl`)",
)
NLL = Metric("actor/nll", "nats", "negative log-likelihood of the trained tokens")
COV_FRAC = Metric("actor/cov_frac", "share", "clip_cov and kl_cov: tokens selected for their covariance")
GATE_MEAN = Metric("actor/gate_mean", "", "sapo: mean slope of the soft gate, which is 1 at a ratio of 1")
SCORE_MEAN = Metric("actor/score_mean", "", "reward models: mean score of the trained answers")
LABEL_MEAN = Metric("actor/label_mean", "", "reward models: mean label of the trained answers")
OF_LOSS = Metric("actor/<name>", "", "a metric that your own loss returns")
KL_IN_REWARD = Metric(
    "kl/reward_mean",
    "nats",
    "mean KL to the reference policy; `kl/reward_coef` times this KL is subtracted from the reward",
    console=Row("kl", "{} nats to the reference"),
    report=Line("KL divergence", "to the reference, in the reward"),
)
KL_COEF = Metric(
    "kl/reward_coef",
    "",
    "coefficient of the KL in the reward",
    console=Row("kl", "times {}"),
    report=Line("Coefficient of the KL in the reward", "coefficient"),
)
KEPT = Metric(
    "kept/samples",
    "share",
    "samples that remain after filters and are used in the loss",
    console=Row("kept", "{} of the samples"),
    report=Line("Samples in the loss", "kept"),
)
