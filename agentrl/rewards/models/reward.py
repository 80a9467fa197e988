"""The reward `reward_model`: what a reward model says of a whole conversation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import JsonValue

from agentrl.config.learned_rewards import RewardModelConfig
from agentrl.config.reward import RewardConfig
from agentrl.errors import AgentRLError, ConfigError, RewardError
from agentrl.models.loading import load_tokenizer
from agentrl.rewards.base import probability
from agentrl.rewards.models.reading import ChatReader, Reader, TokenReader, TurnReader, conversation, fitting
from agentrl.rewards.models.scorer import load_scorer, model_config
from agentrl.rewards.models.waiting import ScoreAll, Together
from agentrl.tools.base import InfraError

STATE_FOLDER = "trainer_state"
"""What a checkpoint of agentrl has beside the weights."""


class ModelReward:
    """Scores the last trajectory of a rollout, requests that wait together.

        {"score": 1.0}, as a probability {"score": 0.73, "logit": 1.0}, as a verdict {"score": 1.0, "logit": 1.0}

    Args:
        score_all: the model's numbers.
        max_length: the most tokens it reads.
        close: frees it.
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
        self._score = Together(score_all, config.batch_tokens, config.batch_size)
        self.close = close

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the conversation cannot be read, or the model's number is not finite; names the row.
            InfraError: it is too long, and such rollouts are left out.
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
            raise RewardError(f"its number is {score}, no finite one")
        match self._config.activated:
            case "sigmoid":
                return {"score": probability(score), "logit": score}
            case "verdict":
                return {"score": float(score >= 0), "logit": score}
        return {"score": score}


def load_model_reward(config: RewardConfig) -> ModelReward:
    """The reward model of `reward.reward_model`, as it is: nothing trains it.

    Raises:
        ConfigError: it cannot be used.
    """
    model = config.reward_model
    scorer, max_length = load_scorer(model)
    return ModelReward(model, load_reader(model, str(model.path)), scorer, max_length, scorer.close)


def load_reader(config: RewardModelConfig, path: str) -> Reader:
    """What makes conversations into tokens for the model at `path`.

    Raises:
        ConfigError: it has no tokenizer.
        TemplateError: that has no chat template.
    """
    trained_here = (Path(path) / STATE_FOLDER).is_dir()
    how = config.input or ("tokens" if config.path is None else "turns" if trained_here else "chat")
    if how == "tokens":
        return TokenReader()
    tokenizer = load_tokenizer(model_config(config, path))
    if tokenizer is None:
        raise ConfigError(f"reward.reward_model.path: '{path}' has no tokenizer, and input={how} needs one")
    return ChatReader(tokenizer) if how == "chat" else TurnReader(tokenizer)
