"""GSPO: clips the ratio of the sequence instead of token ratios (Zheng et al. 2025, arXiv:2507.18071)."""

from __future__ import annotations

from agentrl.algos.kl_divergence import MAX_LOG_RATIO
from agentrl.algos.losses.registry import LossBatch, TokenLoss
from agentrl.algos.losses.vanilla import clip
from agentrl.algos.options import with_scope


@with_scope("rollout")
def gspo(batch: LossBatch, *, clip_ratio_low: float = 3e-4, clip_ratio_high: float = 4e-4) -> TokenLoss:
    """max(-A s, -A clip(s, 1 - low, 1 + high)), s = exp(mean over the sequence of log(policy / old policy)).

    The loss has the paper's token form (GSPO-token): sg(s) * p / sg(p) replaces s, where sg stops the gradient. So
    advantages may differ between tokens. If all tokens of a sequence have the same advantage, the mean over the tokens
    (`seq-mean-token-mean`) has the value and gradient of the sequence's loss. A sequence is a rollout, with all its
    trajectories.

    Metrics: as in vanilla; `ratio_mean` is the mean of s.
    """
    log_ratio = batch.log_ratio()
    token = batch.logprobs - batch.logprobs.detach()
    ratio = (batch.rollout_means(log_ratio).detach() + token).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    losses, clipped = clip(ratio, batch.advantages, clip_ratio_low, clip_ratio_high)
    return losses, {"pg_clipfrac": clipped.to(ratio.dtype), "ppo_kl": -log_ratio, "ratio_mean": ratio}
