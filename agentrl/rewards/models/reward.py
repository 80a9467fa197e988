"""Reward `reward_model`: the score of a reward model for a complete conversation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.config.reward_model import RewardModelConfig
from agentrl.errors import AgentRLError, ConfigError, Kind, RewardError
from agentrl.models.loading import load_tokenizer
from agentrl.rewards.base import probability
from agentrl.rewards.models.batcher import Batcher, ScoreAll
from agentrl.rewards.models.inputs import ChatReader, Reader, TokenReader, TurnReader, conversation, fitting
from agentrl.rewards.models.scorer import load_scorer, model_config
from agentrl.tools.base import InfraError

STATE_FOLDER = "trainer_state"
"""Folder that only checkpoints of agentrl have next to the weights."""


class ModelReward:
    """Scores the last trajectory of a rollout; waiting requests are batched.

    If the model's output is 1.0, the rewards are {"score": 1.0}; with `activated: sigmoid`
    {"score": 0.73, "logit": 1.0}; with `activated: verdict` {"score": 1.0, "logit": 1.0}.

    Args:
        score_all: computes the model's scores.
        max_length: maximum number of tokens that the model reads.
        close: frees the model.
    """

    def __init__(
        self,
        config: RewardModelConfig,
        reader: Reader,
        score_all: ScoreAll,
        max_length: int,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._config, self._read, self._max_length = config, reader, max_length
        self._score = Batcher(score_all, config.batch_tokens, config.batch_size)
        self.close = close

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the conversation cannot be read, or the model's score is not finite. The message names the row.
            InfraError: the conversation is too long, and `too_long` is `leave_out`.
        """
        try:
            return await self._rewards(solution_str, extra_info)
        except (AgentRLError, InfraError) as error:
            kind = InfraError if isinstance(error, InfraError) else RewardError
            where = f"reward model (data source '{data_source}', row {extra_info.get('index', 'unknown')})"
            raise kind(f"{where}: {error}") from error

    async def _rewards(self, solution_str: str, extra_info: Mapping[str, object]) -> dict[str, float]:
        token_ids = self._read(*conversation(solution_str, extra_info))
        score = await self._score(fitting(token_ids, self._max_length, self._config.too_long))
        if not math.isfinite(score):
            raise RewardError(f"its score is {score}, not a finite number")
        match self._config.activated:
            case "sigmoid":
                return {"score": probability(score), "logit": score}
            case "verdict":
                return {"score": float(score >= 0), "logit": score}
        return {"score": score}


def load_model_reward(config: RewardConfig) -> ModelReward:
    """Load the reward model of `reward.reward_model`; it is not trained.

    Raises:
        ConfigError: the model cannot be used.
    """
    model = config.reward_model
    scorer, max_length = load_scorer(model)
    return ModelReward(model, load_reader(model, str(model.path)), scorer, max_length, scorer.close)


def load_reader(config: RewardModelConfig, path: str) -> Reader:
    """Return the reader that converts conversations to tokens for the model at `path`.

    Raises:
        ConfigError: the model has no tokenizer.
        TemplateError: the tokenizer has no chat template.
    """
    trained_here = (Path(path) / STATE_FOLDER).is_dir()
    how = config.input or ("tokens" if config.path is None else "turns" if trained_here else "chat")
    if how == "tokens":
        return TokenReader()
    tokenizer = load_tokenizer(model_config(config, path))
    if tokenizer is None:
        raise ConfigError.at(
            "reward.reward_model.path",
            Kind.NOT_SUPPORTED,
            f"reward.reward_model.path: '{path}' has no tokenizer, but input={how} needs one",
        )
    return ChatReader(tokenizer) if how == "chat" else TurnReader(tokenizer)
