"""Base class of interactions: simulated users who answer the model's turns, with verl's lifecycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from pydantic import JsonValue

from agentrl.registry import Registry
from agentrl.types.messages import ChatAnswer, Message
from agentrl.types.task import Task


class Sample(Protocol):
    """Samples an answer to messages with the run's engine and current weights. No step trains on the sampled tokens."""

    async def __call__(
        self, messages: Sequence[Message], *, seed: int, temperature: float = 1.0, max_tokens: int = 512
    ) -> ChatAnswer:
        """Return the answer. Text of the messages never becomes control tokens.

        Raises:
            InfraError: the engine ended the request, or the messages are too long for the model.
        """
        ...


@dataclass(frozen=True, slots=True)
class InteractionData:
    """Data about the rollout, passed to those methods of an interaction that have the argument `agent_data`.

    Attributes:
        seed: derived from the rollout's seed. A user who draws random numbers from this seed is reproducible.
        sample: samples an answer with the run's engine; None outside of a run.
    """

    task: Task
    seed: int = 0
    sample: Sample | None = None


class BaseInteraction:
    """A simulated user. Subclass it and implement `generate_response`. One instance serves all rollouts.

    The row's `interaction_kwargs`, without `name`, are keyword arguments of the methods from `start_interaction` to
    `finalize_interaction`. A method with an argument `agent_data` also gets an `InteractionData`.
    """

    timeout_s: float = 60.0
    """Timeout of each method, in seconds. After a timeout, the rollout counts as an infrastructure failure."""
    deterministic: bool = True
    """Whether the same conversation gets the same answers. If not, the run is not guaranteed to be reproducible."""

    def __init__(self, config: dict[str, JsonValue]) -> None:
        self.config = config
        self.name: str = str(config.get("name", "interaction"))

    async def start_interaction(self, instance_id: str | None = None, **kwargs: object) -> str:
        """Start one rollout; `kwargs` are the row's `interaction_kwargs`."""
        return instance_id or uuid4().hex

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message], **kwargs: object
    ) -> tuple[bool, str, float, dict[str, JsonValue]]:
        """Answer the model's last turn. Return (done, answer, score of that turn, metrics).

        If `done` is true, the conversation is over.

        An `observation_key` in the metrics names the state in which that turn started: `algorithm.name=gigpo` compares
        turns of a group that started in the same state.
        """
        raise NotImplementedError(f"{type(self).__name__} must define generate_response")

    async def calculate_score(self, instance_id: str, **kwargs: object) -> float:
        """Return the user's score for the rollout."""
        return 0.0

    async def finalize_interaction(self, instance_id: str, **kwargs: object) -> None:
        """End one rollout; also called after a failure."""

    def check_row(self, given: Mapping[str, JsonValue]) -> None:
        """Reject a row that this user cannot serve; called for every row before a model is loaded.

        Args:
            given: the row's `interaction_kwargs` without `name`.

        Raises:
            DataError: the row is not accepted; the message names the field.
        """


interactions: Registry[type[BaseInteraction]] = Registry(
    "interaction",
    {
        "gsm8k": "agentrl.interactions.gsm8k:Gsm8kInteraction",
        "model_user": "agentrl.interactions.model:ModelUser",
    },
)
"""Simulated users that a YAML file can name."""
