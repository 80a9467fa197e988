"""Builds the online reward model from the configuration. This model is trained during the run."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from agentrl.algos.reward_model.samples import reading
from agentrl.backends.base import Backend, ModelRequest, load_backend
from agentrl.config import RunConfig
from agentrl.config.reward_model import OnlineRewardConfig
from agentrl.config.rules.reward import REWARD_MODEL
from agentrl.rewards.loading import load_reward
from agentrl.rewards.models.reward import ModelReward, load_reader
from agentrl.rewards.models.scorer import PATH, longest
from agentrl.trainer.builders.rollouts import reward_of
from agentrl.trainer.models.online_reward import OnlineRewardModel
from agentrl.types.rollout import Rollout


def load_online_reward_model(config: RunConfig) -> OnlineRewardModel:
    """Load the online reward model, and build the mixture of rewards that contains its score.

    The model is `reward.reward_model.path`. If this key is not set, it is the policy's model with a new head.

    Raises:
        ConfigError: model, tokenizer or reward cannot be used.
    """
    reward = reward_of(config)
    model = reward.reward_model
    assert model.online is not None  # callers check that `online` is set
    path = model.path or config.model.path
    request = ModelRequest(
        config.model.model_copy(
            update={
                "path": path,
                "dtype": model.dtype,
                "trust_remote_code": model.trust_remote_code or (model.path is None and config.model.trust_remote_code),
            }
        ),
        config.actor.model_copy(
            update={
                "device": model.device,
                "optim": model.online.optim,
                "grad_clip": model.online.grad_clip,
                "freeze_modules": (),
                "ppo_max_token_len_per_gpu": min(model.batch_tokens, config.actor.ppo_max_token_len_per_gpu),
            }
        ),
        total_updates=_total_updates(config, model.online),
        value_head=True,
        key="model.path" if model.path is None else PATH,
    )
    backend = load_backend(config, request)
    reader = load_reader(model, path)
    scored = ModelReward(model, reader, _Scores(backend), longest(model, backend.max_positions))
    (component,) = (name for name, each in reward.components.items() if each.reward == REWARD_MODEL)

    def read(rollout: Rollout) -> Sequence[int]:
        trajectory = rollout.trajectories[-1]
        return reader(trajectory.messages, trajectory.token_ids)

    mixture = load_reward(reward, config.data.max_response_length, {REWARD_MODEL: scored})
    return OnlineRewardModel(backend, mixture, component, read, model.online, config.trainer.seed)


class _Scores:
    """Scores conversations with a backend: a conversation's score is the value at its last token."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def __call__(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        samples = [reading(token_ids, {len(token_ids): 0.0}) for token_ids in conversations]
        values = (await self._backend.score(samples)).values
        assert values is not None  # a reward model returns values
        return [row[-1] for row in values]


def _total_updates(config: RunConfig, online: OnlineRewardConfig) -> int:
    """Return the number of updates for the learning-rate schedule, as if the replay buffer were full from the start."""
    rounds = (config.trainer.total_training_steps or 1) // online.every
    return max(1, rounds * online.epochs * ceil(online.buffer / online.batch_size))
