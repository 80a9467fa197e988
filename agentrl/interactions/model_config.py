"""Settings of a user that a language model plays."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from agentrl.config.base import Section, chat_url
from agentrl.config.uses import ADDRESS, Options, Text, code

Code = Annotated[str, code()]
ASK = "ask"


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if not bounds[0] < bounds[1]:
        raise ValueError("expected two numbers, the lower first")
    return bounds


class ModelUserConfig(Section):
    """Settings of a user that a language model plays: at an endpoint, or in the run's engine."""

    name: Text = "model_user"
    """Name by which rows select this user."""
    url: Annotated[str, AfterValidator(chat_url), ADDRESS] | None = None
    """URL of the endpoint, without /chat/completions."""
    model: Text | None = None
    """Model name at the endpoint."""
    api_key_env: Annotated[str, ADDRESS] | None = None
    """Environment variable that contains the API key."""
    engine: Literal["policy"] | None = None
    """policy: the user model is the policy in the run's engine, instead of a model at an endpoint."""
    persona: Text | None = None
    """Description of the user; a row may replace it."""
    goal: Text | None = None
    """Goal of the user; a row may replace it."""
    prompt: Text | None = None
    """Instructions for the user model; null: built-in instructions."""
    stop: Text | None = "[END]"
    """Text with which the user model ends the conversation."""
    stop_when: Code | None = None
    """Function that gets the messages and the row's arguments; if it returns true, the conversation ends."""
    max_turns: PositiveInt = 20
    """Maximum number of answers of the user in a conversation."""
    max_conversation_tokens: PositiveInt | None = None
    """Maximum number of tokens that the user model may read and write in a conversation."""
    prices: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    """Price of a million prompt tokens, and of a million sampled tokens."""
    max_cost: PositiveFloat | None = None
    """Maximum cost of all requests of this process, in the currency of `prices`."""
    score: Code | None = None
    """ask: the user model scores the model's last turn. null: score 0. Other value: a function that scores the turn."""
    score_range: Annotated[tuple[float, float], AfterValidator(_ordered)] = (0.0, 10.0)
    """With `score: ask`: lowest and highest score that the user model may give."""
    temperature: NonNegativeFloat | None = 1.0
    """Sampling temperature; null: default of the endpoint, or 1 with `engine: policy`."""
    max_tokens: PositiveInt = 512
    """Maximum number of tokens of an answer."""
    max_characters: PositiveInt = 20_000
    """Maximum number of characters of an answer; a longer answer is invalid."""
    max_concurrent: PositiveInt = 32
    """Maximum number of concurrent requests, over all conversations."""
    max_per_minute: PositiveFloat | None = None
    """Maximum number of requests per minute, over all conversations."""
    timeout_s: PositiveFloat = 60.0
    """Timeout of one request, in seconds."""
    max_retries: NonNegativeInt = 4
    """Retries after a failure or an invalid answer."""
    send_seed: bool = True
    """Send a seed to the endpoint."""
    extra_body: Options = Field(default={})
    """Further parameters of a request."""

    @model_validator(mode="after")
    def _has_one_model(self) -> Self:
        if (self.url is None) == (self.engine is None):
            raise ValueError("needs either 'url' (an endpoint) or 'engine: policy' (the run's engine)")
        if self.url is not None and self.model is None:
            raise ValueError("needs 'model', the name of the model at the endpoint")
        if self.engine and (unused := [name for name in _OF_ENDPOINT if name in self.model_fields_set]):
            raise ValueError(f"'{unused[0]}' has no effect with 'engine: policy'")
        if (self.prices is None) != (self.max_cost is None):
            raise ValueError("set both 'prices' and 'max_cost', or neither")
        if "score_range" in self.model_fields_set and self.score != ASK:
            raise ValueError(f"'score_range' has no effect without 'score: {ASK}'")
        return self

    def own_options(self) -> dict[str, JsonValue]:
        """Return the parameters of a request, other than model name, messages and seed."""
        options: dict[str, JsonValue] = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {**{name: value for name, value in options.items() if value is not None}, **self.extra_body}


_OF_ENDPOINT = (
    *("model", "api_key_env", "prices", "max_cost", "max_concurrent", "max_per_minute", "timeout_s"),
    *("send_seed", "extra_body"),
)
