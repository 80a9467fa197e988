"""A simulated user who tells the model whether its answer to a word problem is correct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from pydantic import JsonValue

from agentrl.errors import DataError
from agentrl.interactions.base import BaseInteraction
from agentrl.types.messages import Message
from agentrl.utils.answers import as_number, final_number


class Gsm8kInteraction(BaseInteraction):
    """Asks for another try until the last number in a model turn equals `ground_truth`; that turn gets score 1."""

    def check_row(self, given: Mapping[str, JsonValue]) -> None:
        """Reject a row without a number as `ground_truth`."""
        _expected(given.get("ground_truth"))

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message], ground_truth: object = None, **kwargs: object
    ) -> tuple[bool, str, float, dict[str, JsonValue]]:
        """Check the last assistant message."""
        expected = _expected(ground_truth)
        last_text = next((str(m.get("content") or "") for m in reversed(messages) if m["role"] == "assistant"), "")
        if final_number(last_text, "flexible") == expected:
            return True, "Your response is correct!", 1.0, {}
        return False, "Your response is incorrect! You need to reflect on your answer and try again.", 0.0, {}


def _expected(ground_truth: object) -> Decimal:
    if (expected := as_number(ground_truth)) is None:
        raise DataError(f"interaction_kwargs.ground_truth must be a number, not {ground_truth!r}")
    return expected
