"""Base class of interactions: simulated users who answer the model's turns, with verl's lifecycle."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from pydantic import JsonValue

from agentrl.types.messages import Message


class BaseInteraction:
    """A simulated user. Subclass it and implement `generate_response`. One instance serves all rollouts."""

    def __init__(self, config: dict[str, JsonValue]) -> None:
        self.config = config
        self.name: str = str(config.get("name", "interaction"))

    async def start_interaction(self, instance_id: str | None = None, **kwargs: object) -> str:
        """Start one rollout; `kwargs` are the row's `interaction_kwargs`."""
        return instance_id or uuid4().hex

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message], **kwargs: object
    ) -> tuple[bool, str, float, dict[str, JsonValue]]:
        """Answer the model's last turn. Return (whether the conversation is over, text, score of that turn, metrics).

        An `observation_key` in the metrics names the state in which that turn started: `algorithm.name=gigpo` compares
        turns of a group that started in the same state.
        """
        raise NotImplementedError(f"{type(self).__name__} must define generate_response")

    async def calculate_score(self, instance_id: str, **kwargs: object) -> float:
        """Return the user's score for the rollout."""
        return 0.0

    async def finalize_interaction(self, instance_id: str, **kwargs: object) -> None:
        """End one rollout; always called."""
