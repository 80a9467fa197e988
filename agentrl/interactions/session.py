"""Simulated user of one rollout."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self
from uuid import uuid4

from pydantic import JsonValue

from agentrl.chat.history import as_one_text
from agentrl.concurrency import CircuitBreaker, Offload, OverdueError, UnavailableError
from agentrl.errors import AgentRLError, DataError, suggestion
from agentrl.interactions.base import BaseInteraction, InteractionData, Sample
from agentrl.tools.base import InfraError
from agentrl.types.messages import Message
from agentrl.types.task import Task
from agentrl.utils.signatures import keyword_filter
from agentrl.utils.user_code import format_error

_LOGGER = logging.getLogger(__name__)
_OFFLOAD = Offload()  # one event loop thread for all simulated users, so that they can share clients


class Answer(NamedTuple):
    """The user's answer to a model turn.

    Attributes:
        done: whether the conversation is over.
        score: score of the turn that is answered.
        observation_key: name of the state in which that turn started, if the user names the state.
    """

    done: bool
    text: str
    score: float
    observation_key: str | None


class InteractionSession:
    """Context manager that starts the interaction, and finalizes it at the end of the block, also after an error.

    An error that the interaction's code raises becomes an `InfraError`, unless it is an `AgentRLError`.

    Args:
        seed, sample: passed to the interaction, see `InteractionData`.
        timeout_s: timeout of each method of the interaction, in seconds; None: the interaction's `timeout_s`.

    Raises:
        DataError: the row names an unknown interaction, or the row names none and there are several interactions.
    """

    def __init__(
        self,
        interactions: Mapping[str, BaseInteraction],
        task: Task,
        *,
        seed: int = 0,
        sample: Sample | None = None,
        timeout_s: float | None = None,
    ) -> None:
        try:
            self._interaction = chosen(interactions, task)
        except DataError as error:
            raise DataError(f"row {task.index}: {error}") from error
        self._options = options_of(task)
        self._data = InteractionData(task, seed, sample)
        own_timeout_s = getattr(self._interaction, "timeout_s", BaseInteraction.timeout_s)
        self._timeout_s = own_timeout_s if timeout_s is None else timeout_s
        self._breaker = CircuitBreaker(f"interaction '{self._interaction.name}'")
        self._id: str | None = None

    async def respond(self, messages: Sequence[Message]) -> Answer:
        """Answer the model's last turn. The interaction receives thoughts in the messages' content, as in verl.

        Raises:
            InfraError: the interaction failed or timed out.
        """
        answer = await self._run("generate_response", self._id, [*map(as_one_text, messages)])
        try:
            done, text, score = answer[:3]  # type: ignore[index]  # a user's code may return anything
            return Answer(bool(done), str(text), _finite(score), _observation_key(*answer[3:4]))  # type: ignore[index]
        except (TypeError, ValueError) as error:
            raise InfraError(
                f"{self._breaker.name} returned {answer!r:.200}, expected (done, text, score, data)"
            ) from error

    async def score(self) -> float:
        """Return the user's score for the rollout, from `calculate_score`.

        Raises:
            InfraError: the interaction failed or returned no number.
        """
        value = await self._run("calculate_score", self._id)
        try:
            return _finite(value)
        except (TypeError, ValueError) as error:
            raise InfraError(f"{self._breaker.name} returned the score {value!r:.200}") from error

    async def __aenter__(self) -> Self:
        self._id = str(await self._run("start_interaction", uuid4().hex))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._run("finalize_interaction", self._id, detached=True)
        except InfraError as failure:  # this failure only leaves resources open
            _LOGGER.warning("%s", failure, exc_info=failure)

    async def _run(self, method: str, *arguments: object, detached: bool = False) -> object:
        where = f"{self._breaker.name}, {method}"
        try:
            running = _OFFLOAD.begin(partial(self._invoke, method, *arguments), self._breaker)
            return await running.result(self._timeout_s, detached=detached)
        except OverdueError:
            raise InfraError(f"{where} took longer than {self._timeout_s:g} seconds") from None
        except (InfraError, UnavailableError) as error:
            raise InfraError(f"{where}: {error}") from error
        except AgentRLError:  # a mistake in the data or code, such as a row without a required argument
            raise
        except Exception as error:  # user code may raise any error
            raise InfraError(f"{where} raised {format_error(error)}") from error

    async def _invoke(self, method: str, *arguments: object) -> object:
        function = getattr(self._interaction, method)
        parameters = inspect.signature(function).parameters
        if not parameters:  # such as methods of verl's base class
            returned = function()
        else:
            data = {"agent_data": self._data} if "agent_data" in parameters else {}
            returned = function(*arguments, **{**keyword_filter(function)(self._options), **data})
        return await returned if inspect.isawaitable(returned) else returned


def options_of(task: Task) -> dict[str, JsonValue]:
    """Return the row's keyword arguments for its interaction."""
    return {name: value for name, value in task.interaction_kwargs.items() if name != "name"}


def check_interaction(interactions: Mapping[str, BaseInteraction], task: Task) -> None:
    """Reject a row whose interaction is unknown, or does not accept the row.

    Raises:
        DataError: the row is invalid; the message names the field.
    """
    check = getattr(chosen(interactions, task), "check_row", None)
    if check is not None:
        check(options_of(task))


def _observation_key(data: object = None) -> str | None:
    key = data.get("observation_key") if isinstance(data, Mapping) else None
    return None if key is None else str(key)


def _finite(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]  # a user's code may return anything
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def chosen(interactions: Mapping[str, BaseInteraction], task: Task) -> BaseInteraction:
    """Return the interaction named in a row's `interaction_kwargs`, or the only interaction if no name is given.

    Raises:
        DataError: the name is unknown, or is missing and there are several interactions.
    """
    name = task.interaction_kwargs.get("name")
    if name is None and len(interactions) == 1:
        return next(iter(interactions.values()))
    if name not in interactions:
        named = f"unknown interaction '{name}'" if name is not None else "no interaction is named"
        raise DataError(f"field 'interaction_kwargs.name': {named}: {suggestion(str(name), interactions)}")
    return interactions[str(name)]
