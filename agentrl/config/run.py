"""The whole configuration of a run."""

from __future__ import annotations

from typing import Literal

from agentrl.config.actor import ActorConfig, RefConfig
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.config.base import Section
from agentrl.config.data import DataConfig
from agentrl.config.model import ModelConfig
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
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The algorithm."""
    reward: RewardConfig = RewardConfig()
    """The reward."""
    trainer: TrainerConfig = TrainerConfig()
    """The run."""

    def without(self, files: Literal["train_files", "val_files"]) -> RunConfig:
        """The same for a run that leaves those files alone."""
        return self.model_copy(update={"data": self.data.model_copy(update={files: ()})})
