"""The whole configuration of a run, and the rules that span its sections."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

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
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    actor: ActorConfig = ActorConfig()
    ref: RefConfig = RefConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    reward: RewardConfig = RewardConfig()
    trainer: TrainerConfig = TrainerConfig()
