"""Presets of `algorithm.name`: source of the groups, advantage estimator and loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
Family = Literal["policy", "imitation", "preference", "reward"]
Feed = Literal["rollouts", "conversations", "pairs", "labels"]


@dataclass(frozen=True, slots=True)
class Preset:
    """One algorithm.

    Attributes:
        summary: one-line description.
        adv_estimator: a registered advantage estimator. For preferences: `best_worst`, or `scores` for a full ranking.
        loss: a registered policy loss or preference loss.
        aggregation: default of `actor.loss_agg_mode`.
        family: policy: policy gradient; imitation: likelihood of selected samples; preference: comparison within a
            group; reward: trains a reward model, no policy.
        feed: what `trainer.mode=train` trains on. rollouts: live rollouts. conversations, pairs, labels: rows of
            `data.train_files`. With `trainer.mode=train_only`, every algorithm trains on saved rollouts.
        compares: whether the advantage compares the rollouts of a group, so that a group of one has advantage 0.
    """

    summary: str
    adv_estimator: str
    loss: str = "vanilla"
    aggregation: Aggregation = "token-mean"
    family: Family = "policy"
    feed: Feed = "rollouts"
    compares: bool = True

    @property
    def group_size(self) -> int:
        """Default of `rollout.n`: 8 if rollouts of a task are compared or the best are selected, else 1."""
        return 8 if self.feed == "rollouts" and (self.compares or self.family == "imitation") else 1


PRESETS: dict[str, Preset] = {
    "grpo": Preset("group-relative policy optimisation", "grpo"),
    "dr_grpo": Preset("GRPO without std and length normalisation", "dr_grpo", "vanilla", "seq-mean-token-sum-norm"),
    "grpo_passk": Preset("GRPO for pass@k: only the best rollout of a group gets an advantage", "grpo_passk"),
    "rloo": Preset("REINFORCE; baseline: mean reward of the group's other rollouts", "rloo"),
    "remax": Preset("REINFORCE; baseline: reward of a greedy rollout", "remax", compares=False),
    "reinforce_plus_plus": Preset(
        "REINFORCE with returns normalised over the batch", "reinforce_plus_plus", compares=False
    ),
    "reinforce_plus_plus_baseline": Preset(
        "REINFORCE++ with the group's mean as baseline", "reinforce_plus_plus_baseline"
    ),
    "opo": Preset("REINFORCE; baseline: length-weighted mean reward of the group", "opo"),
    "gpg": Preset("group policy gradient, without clipping", "gpg", "gpg"),
    "gdpo": Preset("GRPO advantages of each reward, summed", "gdpo"),
    "gae": Preset("PPO: a critic and generalised advantage estimation", "gae", compares=False),
    "grpo_process": Preset("GRPO with process rewards, one per step", "grpo_process"),
    "grpo_turn": Preset("GRPO with discounted turn rewards", "grpo_turn"),
    "mt_grpo": Preset("multi-turn GRPO: turn and outcome advantages", "mt_grpo"),
    "gigpo": Preset("group-in-group: also compares steps that start in the same state", "gigpo"),
    "gspo": Preset("sequence-level ratios and clipping", "grpo", "gspo", "seq-mean-token-mean"),
    "cispo": Preset("clipped importance weights; every token keeps its gradient", "grpo", "cispo"),
    "gmpo": Preset("clips the geometric mean of token ratios", "grpo", "gmpo", "seq-mean-token-mean"),
    "sapo": Preset("a soft gate instead of clipping", "grpo", "sapo", "seq-mean-token-mean"),
    "clip_cov": Preset("leaves out tokens of high covariance", "grpo", "clip_cov"),
    "kl_cov": Preset("KL penalty on tokens of high covariance", "grpo", "kl_cov"),
    "dppo": Preset("a trust region by divergence instead of clipping", "grpo", "dppo"),
    "reinforce": Preset("plain REINFORCE with group-relative advantages", "grpo", "reinforce"),
    "pairwise": Preset(
        "preference loss on the best and worst rollout of a group", "best_worst", "pairwise", family="preference"
    ),
    "ranking": Preset("ranking loss on a group, ordered by reward", "scores", "ranking", family="preference"),
    "online_dpo": Preset("DPO on the best and worst rollout of live groups", "best_worst", "dpo", family="preference"),
    "dpo": Preset(
        "direct preference optimisation on saved pairs", "best_worst", "dpo", family="preference", feed="pairs"
    ),
    "ipo": Preset("DPO with a squared loss, on saved pairs", "best_worst", "ipo", family="preference", feed="pairs"),
    "rft": Preset(
        "SFT on rollouts with a reward above a threshold", "threshold", "sft", family="imitation", compares=False
    ),
    "reward_pairs": Preset(
        "a reward model from preference pairs (Bradley-Terry)",
        "best_worst",
        "bradley_terry",
        family="reward",
        feed="pairs",
    ),
    "reward_outcomes": Preset(
        "a reward model from the outcomes of conversations",
        "labelled",
        "outcome",
        family="reward",
        feed="labels",
        compares=False,
    ),
    "reward_steps": Preset(
        "a process reward model from one label per turn",
        "labelled",
        "outcome",
        family="reward",
        feed="labels",
        compares=False,
    ),
    "sft": Preset(
        "supervised fine-tuning on saved conversations",
        "demonstrated",
        "sft",
        family="imitation",
        feed="conversations",
        compares=False,
    ),
}
"""algorithm.name -> preset. docs/algorithms.md lists the papers."""
