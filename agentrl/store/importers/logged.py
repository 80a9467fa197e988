"""A row of another framework's log, and readers for its fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.data.fields import FieldError, wrong
from agentrl.data.rows.base import Row
from agentrl.types.messages import Message
from agentrl.types.trajectory import Trajectory

_LARGEST_STEP = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Logged:
    """One row of a log.

    Attributes:
        prompt: messages before the first answer of the model.
        answer: the model's first answer and all later messages, including those of tools and users.
        step: None if the row has no step.
        uid: rows of a step with the same uid form a group; None: rows with the same task form a group.
        attempt: rows of a group with the same attempt are trajectories of one rollout; None: each row is a rollout.
        rest: name -> value of the row's fields that have no counterpart in a rollout.
        trajectories: the rollout's trajectories with tokens. Empty if the log has no tokens; the conversation is then
            `prompt` followed by `answer`.
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
    trajectories: Sequence[Trajectory] = ()


ReadRow: TypeAlias = Callable[[JsonValue], Logged]
"""Function that reads a row; it raises FieldError if the row does not have the format."""


def an_object(value: JsonValue, example: str) -> Row:
    """Return the row if it is an object.

    Raises:
        FieldError: the row is not an object.
    """
    if not isinstance(value, dict):
        raise FieldError(f"expected an object such as {example}, got {type(value).__name__}")
    return value


def step_of(row: Row) -> int | None:
    """Return the step of a row, or None if the row has no step.

    Raises:
        FieldError: the step is not an integer of at least 0.
    """
    step = row.get("step")
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= _LARGEST_STEP:
        raise wrong("step", "an integer of at least 0", step)
    return step


def finite(row: Row, key: str) -> float:
    """Return the number at `key`.

    Raises:
        FieldError: the value is not a finite number.
    """
    number = _number(row.get(key))
    if number is None:
        raise wrong(key, "a finite number", row.get(key))
    return number


def numbers_of(row: Row) -> dict[str, float]:
    """Return the fields of a row that are finite numbers, by name."""
    numbers = {key: _number(value) for key, value in row.items()}
    return {key: number for key, number in numbers.items() if number is not None}


def without(row: Row, keys: Collection[str]) -> dict[str, JsonValue]:
    """Return the row's non-null values, except those of `keys`."""
    return {key: value for key, value in row.items() if key not in keys and value is not None}


def _number(value: JsonValue) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer beyond the largest float
        return None
    return number if math.isfinite(number) else None
