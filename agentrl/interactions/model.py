"""A simulated user that a language model plays."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar
from uuid import uuid4

from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.interactions.answering import Answering, answering
from agentrl.interactions.base import BaseInteraction, InteractionData
from agentrl.interactions.model_config import ASK, ModelUserConfig
from agentrl.interactions.user_functions import UserFunction
from agentrl.interactions.user_prompt import ASK_SCORE, UserPrompt
from agentrl.interactions.user_view import num_answers, user_view
from agentrl.tools.base import InfraError
from agentrl.types.messages import ChatAnswer, Message
from agentrl.utils.chat_endpoint import InvalidAnswerError, Sleep, without_thought
from agentrl.utils.seeds import derive_seed
from agentrl.utils.yaml_list import check_keys

T = TypeVar("T")
_DAY_S = 86_400.0
_CHARACTERS_PER_TOKEN = 4


@dataclass(slots=True)
class _Talk:
    """State of one conversation."""

    instructions: str
    row: Mapping[str, object]
    data: InteractionData
    num_tokens: int = 0
    scores: list[float] = field(default_factory=list)


class ModelUser(BaseInteraction):
    """A user that a language model plays: at an OpenAI-compatible endpoint, or in the run's engine.

    `ModelUserConfig` has the settings. All conversations share the limits on request rate and concurrency.

    Args:
        sleep: async function that waits for a number of seconds.

    Raises:
        ConfigError: a setting is wrong, a function cannot be imported, or the environment variable of the API key is
            not set.
    """

    timeout_s = _DAY_S  # each request has its own timeout; waiting for a free slot may take long
    deterministic = False

    def __init__(self, config: dict[str, JsonValue], sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(config)
        check_keys(config, ModelUserConfig.model_fields)
        self._settings = settings = ModelUserConfig.model_validate(config)
        self.deterministic = settings.engine is not None
        values = {"persona": settings.persona, "goal": settings.goal, "stop": settings.stop}
        self._prompt = UserPrompt(settings.prompt, values)
        self._answering: Answering = answering(settings, f"interaction '{self.name}'", sleep)
        self._stop_when = UserFunction(settings.stop_when) if settings.stop_when else None
        self._score = UserFunction(settings.score) if settings.score not in (None, ASK) else None
        self._cost = 0.0
        self._talks: dict[str, _Talk] = {}

    def check_row(self, given: Mapping[str, JsonValue]) -> None:
        """Reject a row without the values that the prompt's placeholders need."""
        self._prompt.check(given)

    async def start_interaction(
        self, instance_id: str | None = None, agent_data: object = None, **kwargs: object
    ) -> str:
        """Start a conversation."""
        instance_id = instance_id or uuid4().hex
        assert isinstance(agent_data, InteractionData)  # `InteractionSession` passes it
        self._talks[instance_id] = _Talk(self._prompt.fill(kwargs), kwargs, agent_data)
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message], **kwargs: object
    ) -> tuple[bool, str, float, dict[str, JsonValue]]:
        """Score the model's last turn, and answer it unless the conversation is over."""
        talk = self._talks[instance_id]
        number = num_answers(messages, talk.data.task.messages)
        view = user_view(messages, talk.instructions)
        score = await self._scored(talk, number, view, messages)
        if number >= self._settings.max_turns or self._used_up(talk) or await self._ended(talk, messages):
            return True, "", score, {}
        text = await self._ask(talk, view, derive_seed(talk.data.seed, "answer", number), self._valid)
        stop = self._settings.stop
        done = stop is not None and stop in text
        return done, text.replace(stop, "").strip() if stop and done else text, score, {}

    async def calculate_score(self, instance_id: str, **kwargs: object) -> float:
        """Return the mean score of the scored turns; 0 if there is none."""
        scores = self._talks[instance_id].scores
        return fmean(scores) if scores else 0.0

    async def finalize_interaction(self, instance_id: str, **kwargs: object) -> None:
        """Forget the conversation."""
        self._talks.pop(instance_id, None)

    async def _scored(self, talk: _Talk, number: int, view: Sequence[Message], messages: Sequence[Message]) -> float:
        if self._settings.score is None:
            return 0.0
        if self._score is not None:
            score = _finite(await self._score(messages, talk.row))
        else:
            low, high = self._settings.score_range
            asked = [*view[:-1], _with_question(view[-1], ASK_SCORE.format(low=low, high=high))]
            score = await self._ask(talk, asked, derive_seed(talk.data.seed, "score", number), self._rating)
        talk.scores.append(score)
        return score

    async def _ask(self, talk: _Talk, view: Sequence[Message], seed: int, read: Callable[[str], T]) -> T:
        """Return `read(text)` of a valid answer."""
        self._refuse_costs()

        def counted(answer: ChatAnswer) -> T:
            self._count(talk, view, answer)
            if answer.cut:
                raise InvalidAnswerError("the simulated user's answer was cut off: raise max_tokens")
            return read(without_thought(_storable(answer.text)).strip())

        return await self._answering.ask(view, seed, talk.data.sample, counted)

    def _valid(self, text: str) -> str:
        if not text or text.startswith("<think>"):
            raise InvalidAnswerError("the simulated user's answer is empty")
        if len(text) > self._settings.max_characters:
            raise InvalidAnswerError(f"the simulated user's answer has {len(text):,} characters")
        return text

    def _rating(self, text: str) -> float:
        low, high = self._settings.score_range
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise InvalidAnswerError(f"expected a score from {low:g} to {high:g}, got {text[:60]!r}")
        return (value - low) / (high - low)

    def _count(self, talk: _Talk, view: Sequence[Message], answer: ChatAnswer) -> None:
        read, written = answer.num_prompt_tokens, answer.num_tokens
        if read is None:
            read = sum(len(str(message.get("content"))) for message in view) // _CHARACTERS_PER_TOKEN
        if written is None:
            written = len(answer.text) // _CHARACTERS_PER_TOKEN
        talk.num_tokens += read + written
        if self._settings.prices is not None:
            self._cost += (read * self._settings.prices[0] + written * self._settings.prices[1]) / 1e6

    def _refuse_costs(self) -> None:
        limit = self._settings.max_cost
        if limit is not None and self._cost >= limit:
            raise ConfigError.keyless(
                f"interaction '{self.name}': its requests cost {self._cost:.4g}, and max_cost is {limit:g}:"
                " raise max_cost and resume the run"
            )

    def _used_up(self, talk: _Talk) -> bool:
        limit = self._settings.max_conversation_tokens
        return limit is not None and talk.num_tokens >= limit

    async def _ended(self, talk: _Talk, messages: Sequence[Message]) -> bool:
        return self._stop_when is not None and bool(await self._stop_when(messages, talk.row))


def _storable(text: str) -> str:
    """Return the text with lone surrogates replaced: JSON may contain them, UTF-8 files may not."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _with_question(message: Message, question: str) -> Message:
    return Message(role="user", content=f"{message.get('content')}\n\n{question}")


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise InfraError(f"the function of 'score' returned {value!r:.100}, expected a number")
    return float(value)
