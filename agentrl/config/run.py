"""The whole configuration of a run."""

from __future__ import annotations

from typing import Literal

from agentrl.config.actor import ActorConfig, RefConfig
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.config.base import Section
from agentrl.config.critic import CriticConfig
from agentrl.config.data import DataConfig
from agentrl.config.model import ModelConfig
from agentrl.config.presets import Aggregation
from agentrl.config.reward import RewardConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.config.trainer import TrainerConfig


class RunConfig(Section):
    """Everything a run is told."""

    model: ModelConfig
    """The model."""
    data: DataConfig = DataConfig()
    """The tasks."""
    rollout: RolloutConfig = RolloutConfig()
    """How tasks are attempted."""
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

    @property
    def loss_name(self) -> str:
        """The loss in force."""
        return self.actor.policy_loss.loss_mode or self.algorithm.preset.loss

    @property
    def aggregation(self) -> Aggregation:
        """The aggregation in force."""
        return self.actor.loss_agg_mode or self.algorithm.preset.aggregation

    @property
    def uses_reference(self) -> bool:
        """Whether something is measured against a reference policy; a preference loss of one's own may be."""
        compares = self.algorithm.preset.family == "preference" and self.loss_name not in ("pairwise", "ranking")
        return self.actor.use_kl_loss or self.algorithm.use_kl_in_reward or compares

    def without(self, files: Literal["train_files", "val_files"]) -> RunConfig:
        """The same for a run that leaves those files alone."""
        return self.model_copy(update={"data": self.data.model_copy(update={files: ()})})
