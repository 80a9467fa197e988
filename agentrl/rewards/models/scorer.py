"""A frozen reward model, which transformers loads and which runs outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from agentrl.config.model import ModelConfig
from agentrl.config.reward_model import RewardModelConfig
from agentrl.errors import ConfigError, Kind, RewardError
from agentrl.models.loading import find_device, max_positions
from agentrl.models.scalar import last_scalars, load_scalar_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PATH, DEVICE = "reward.reward_model.path", "reward.reward_model.device"


class Scorer:
    """Returns the model's output at the last token of each conversation.

    The output is equal to that of transformers' classification model, with one exception: for a conversation that ends
    in the padding token, transformers uses an earlier token. One thread runs one call at a time.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward-model")

    async def __call__(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        """Return the [B] scores of conversations with at least one token each.

        Raises:
            RewardError: a token is not in the model's vocabulary.
        """
        if (largest := max(map(max, conversations))) >= self.vocab_size:
            raise RewardError(
                f"token {largest} is outside the reward model's vocabulary of {self.vocab_size}: if its tokenizer is"
                " not the policy's, set reward.reward_model.input=chat"
            )
        return await asyncio.get_running_loop().run_in_executor(self._thread, last_scalars, self._model, conversations)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False)


def load_scorer(config: RewardModelConfig) -> tuple[Scorer, int]:
    """Load the model at `config.path`; return it and the maximum number of tokens of a conversation.

    Raises:
        ConfigError: no path is given, or the model is not a sequence classification model with one label.
    """
    if config.path is None:
        raise ConfigError.at(
            PATH,
            Kind.MISSING,
            f"{PATH} must be given: the folder or the name of a sequence classification model, such as the"
            " checkpoints/step-N/reward_model of a run that trained one online",
        )
    model = load_scalar_model(model_config(config, config.path), find_device(config.device, DEVICE), key=PATH)
    return Scorer(model), longest(config, max_positions(model.config))


def model_config(config: RewardModelConfig, path: str) -> ModelConfig:
    """Return the options for loading the model at `path`, as a configuration section `model`."""
    return ModelConfig(path=path, dtype=config.dtype, trust_remote_code=config.trust_remote_code)


def longest(config: RewardModelConfig, positions: int | None) -> int:
    """Return the maximum number of tokens of a conversation. `positions` is the limit of the model, if it has one.

    Raises:
        ConfigError: `max_length` is greater than `positions`.
    """
    if config.max_length is None:
        return positions or 2**31
    if positions is not None and config.max_length > positions:
        raise ConfigError.at(
            "reward.reward_model.max_length",
            Kind.CONFLICT,
            f"reward.reward_model.max_length={config.max_length} is more than the {positions} positions of the model",
        )
    return config.max_length
