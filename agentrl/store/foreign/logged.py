"""What a row of another framework's log says of one rollout, and how its fields are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.data.fields import FieldError, wrong
from agentrl.data.rows import Row
from agentrl.messages import Message

_LARGEST_STEP = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Logged:
    """One row.

    Attributes:
        prompt: what the model was given first; `answer` is all that followed, tools and users among it.
        step: None where the row does not say.
        uid: rows of a step that share it are siblings; None where the log has none: then those of the same prompt are.
        attempt: rows of one group that share it are trajectories of one rollout; None where each row is a rollout.
        rest: what has no place in a rollout, by name.
    """

    prompt: Sequence[Message]
    answer: Sequence[Message]
    rewards: Mapping[str, float]
    ground_truth: JsonValue = None
    data_source: str | None = None
    step: int | None = None
    uid: str | None = None
    attempt: str | None = None
    extra_info: Mapping[str, JsonValue] = field(default_factory=dict)
    rest: Mapping[str, JsonValue] = field(default_factory=dict)


ReadRow: TypeAlias = Callable[[JsonValue], Logged]
"""Raises FieldError where the row is not one of the format."""


def an_object(value: JsonValue, example: str) -> Row:
    """The row, where it is an object.

    Raises:
        FieldError: it is not.
    """
    if not isinstance(value, dict):
        raise FieldError(f"expected an object such as {example}, got {type(value).__name__}")
    return value


def step_of(row: Row) -> int | None:
    """The step a row says it is of.

    Raises:
        FieldError: it says something else.
    """
    step = row.get("step")
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= _LARGEST_STEP:
        raise wrong("step", "a whole number from 0 on", step)
    return step


def finite(row: Row, key: str) -> float:
    """The number at `key`.

    Raises:
        FieldError: it is none, or not finite.
    """
    number = _number(row.get(key))
    if number is None:
        raise wrong(key, "a finite number", row.get(key))
    return number


def numbers_of(row: Row) -> dict[str, float]:
    """The finite numbers of a row, by name."""
    numbers = {key: _number(value) for key, value in row.items()}
    return {key: number for key, number in numbers.items() if number is not None}


def without(row: Row, keys: Collection[str]) -> dict[str, JsonValue]:
    """What else the row says."""
    return {key: value for key, value in row.items() if key not in keys and value is not None}


def _number(value: JsonValue) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer beyond the largest float
        return None
    return number if math.isfinite(number) else None
