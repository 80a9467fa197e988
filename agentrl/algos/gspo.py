"""GSPO: the ratio of a whole sequence, clipped as one (Zheng et al. 2025, arXiv:2507.18071)."""

from __future__ import annotations

from agentrl.algos.divergence import MAX_LOG_RATIO
from agentrl.algos.losses import LossBatch, TokenLoss
from agentrl.algos.options import looking_at
from agentrl.algos.vanilla import clip


@looking_at("rollout")
def gspo(batch: LossBatch, *, clip_ratio_low: float = 3e-4, clip_ratio_high: float = 4e-4) -> TokenLoss:
    """max(-A s, -A clip(s, 1 - low, 1 + high)), s = exp(mean over the sequence of log(policy / old policy)).

    In the paper's token form (GSPO-token): s as a number times p / sg(p), sg stopping the gradient, so that advantages
    may differ between tokens. Where they do not, the mean over a sequence's tokens (`seq-mean-token-mean`) is the
    sequence's loss, and has its gradient. A sequence is a rollout, with all its trajectories.

    Metrics: as of vanilla; `ratio_mean` is of s.
    """
    log_ratio = batch.log_ratio()
    token = batch.logprobs - batch.logprobs.detach()
    ratio = (batch.rollout_means(log_ratio).detach() + token).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    losses, clipped = clip(ratio, batch.advantages, clip_ratio_low, clip_ratio_high)
    return losses, {"pg_clipfrac": clipped.to(ratio.dtype), "ppo_kl": -log_ratio, "ratio_mean": ratio}
