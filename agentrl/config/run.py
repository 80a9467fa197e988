"""The configuration of a run."""

from __future__ import annotations

from typing import Literal, TypeAlias

from agentrl.config.actor import ActorConfig, CriticConfig, RefConfig
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.config.base import Section
from agentrl.config.data import DataConfig
from agentrl.config.model import ModelConfig
from agentrl.config.presets import Aggregation
from agentrl.config.reward import RewardConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.config.trainer import ClusterConfig, TrainerConfig

RoutedBy: TypeAlias = Literal["rollout", "actor"]
"""A section with the key `routed_experts`."""


class RunConfig(Section):
    """The configuration of a run."""

    model: ModelConfig
    """The model."""
    data: DataConfig = DataConfig()
    """The tasks."""
    rollout: RolloutConfig = RolloutConfig()
    """Engine, sampling and agent loop."""
    actor: ActorConfig = ActorConfig()
    """The trained policy."""
    ref: RefConfig = RefConfig()
    """The reference policy."""
    critic: CriticConfig = CriticConfig()
    """The value model of PPO."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The algorithm."""
    reward: RewardConfig = RewardConfig()
    """The reward."""
    trainer: TrainerConfig = TrainerConfig()
    """The run."""
    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster."""

    @property
    def loss_name(self) -> str:
        """The loss: `actor.policy_loss.loss_mode`, else the preset's."""
        return self.actor.policy_loss.loss_mode or self.algorithm.preset.loss

    @property
    def aggregation(self) -> Aggregation:
        """The loss aggregation: `actor.loss_agg_mode`, else the preset's."""
        return self.actor.loss_agg_mode or self.algorithm.preset.aggregation

    @property
    def uses_reference(self) -> bool:
        """Whether a reference policy is used. Your own preference losses are assumed to use one."""
        compares = self.algorithm.preset.family == "preference" and self.loss_name not in ("pairwise", "ranking")
        return self.actor.use_kl_loss or self.algorithm.use_kl_in_reward or compares

    @property
    def group_size(self) -> int:
        """Rollouts per task: `rollout.n`, else the preset's default."""
        return self.rollout.n or self.algorithm.preset.group_size

    @property
    def routed_by(self) -> RoutedBy | None:
        """Section whose `routed_experts` is true.

        Updates replay the experts chosen by the engine's router (rollout) or by the policy's router (actor).
        """
        if self.actor.routed_experts:
            return "actor"
        return "rollout" if self.rollout.routed_experts else None

    @property
    def uses_ray(self) -> bool:
        """Whether Ray places the processes of a training run, if torchrun does not start them."""
        return self.trainer.nnodes > 1 or self.cluster.address is not None

    def without(self, files: Literal["train_files", "val_files"]) -> RunConfig:
        """Return the configuration without the files of this key of `data`."""
        return self.model_copy(update={"data": self.data.model_copy(update={files: ()})})
