"""Get the answers of a simulated user that a model plays: from an endpoint, or from the run's engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.interactions.base import Sample
from agentrl.interactions.model_config import ModelUserConfig
from agentrl.security.control_text import escape_control_text
from agentrl.tools.base import InfraError
from agentrl.types.messages import ChatAnswer, Message
from agentrl.utils.chat_endpoint import (
    ChatEndpoint,
    EndpointFailedError,
    EndpointOptions,
    EndpointRefusedError,
    InvalidAnswerError,
    Sleep,
    api_key_of,
)
from agentrl.utils.seeds import derive_seed

T = TypeVar("T")
_SEED_BITS = 31  # servers read the seed as a signed 32-bit number


class Answering(Protocol):
    """Asks the model that plays the user."""

    async def ask(
        self, messages: Sequence[Message], seed: int, sample: Sample | None, read: Callable[[ChatAnswer], T]
    ) -> T:
        """Ask until an answer is valid, and return `read(answer)`.

        `read` raises `InvalidAnswerError` to reject an answer.

        Raises:
            InfraError: no valid answer after all retries.
            ConfigError: the model cannot be used as configured.
        """
        ...


def answering(config: ModelUserConfig, name: str, sleep: Sleep) -> Answering:
    """Return the configured source of answers: an endpoint, or the run's engine."""
    return FromEngine(config, name) if config.engine else FromEndpoint(config, name, sleep)


class FromEndpoint:
    """Answers of an OpenAI-compatible endpoint."""

    def __init__(self, config: ModelUserConfig, name: str, sleep: Sleep) -> None:
        self._config, self._name = config, name
        options = EndpointOptions(
            str(config.url),
            api_key_of(config.api_key_env, "api_key_env"),
            max_concurrent=config.max_concurrent,
            max_per_minute=config.max_per_minute,
            timeout_s=config.timeout_s,
            max_retries=config.max_retries,
        )
        self._endpoint = ChatEndpoint(options, sleep)

    async def ask(
        self, messages: Sequence[Message], seed: int, sample: Sample | None, read: Callable[[ChatAnswer], T]
    ) -> T:
        """See `Answering`."""
        try:
            return await self._endpoint.ask(self._body(messages, seed), read)
        except EndpointFailedError as error:
            raise InfraError(str(error)) from error
        except EndpointRefusedError as error:
            raise ConfigError.keyless(f"{self._name}: {error}") from error

    def _body(self, messages: Sequence[Message], seed: int) -> dict[str, JsonValue]:
        sent: list[JsonValue] = [
            {"role": message["role"], "content": escape_control_text(str(message.get("content")))}
            for message in messages
        ]
        own: dict[str, JsonValue] = {"seed": seed % 2**_SEED_BITS} if self._config.send_seed else {}
        return {"model": self._config.model, "messages": sent, **own, **self._config.own_options()}


class FromEngine:
    """Answers sampled by the run's engine, with the policy's current weights."""

    def __init__(self, config: ModelUserConfig, name: str) -> None:
        self._config, self._name = config, name

    async def ask(
        self, messages: Sequence[Message], seed: int, sample: Sample | None, read: Callable[[ChatAnswer], T]
    ) -> T:
        """See `Answering`; a retry samples with another seed."""
        if sample is None:
            raise ConfigError.keyless(f"{self._name}: 'engine: policy' needs the engine of a run")
        temperature = 1.0 if self._config.temperature is None else self._config.temperature
        for number in range(self._config.max_retries + 1):
            answer = await sample(
                messages,
                seed=derive_seed(seed, number),
                temperature=temperature,
                max_tokens=self._config.max_tokens,
            )
            try:
                return read(answer)
            except InvalidAnswerError as error:
                failure = error
        raise InfraError(f"{self._name}: {self._config.max_retries + 1} answers were invalid, the last: {failure}")
