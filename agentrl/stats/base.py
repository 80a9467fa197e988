"""An estimate with its confidence interval, and conversion to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import JsonValue


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its confidence interval.

    Attributes:
        num: number of independent observations (tasks, not rollouts).
        low, high: bounds of the interval; None if they cannot be computed, for example from one observation.
    """

    value: float
    low: float | None
    high: float | None
    num: int

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.value:.4g}{interval}"


def plain(value: object) -> JsonValue:
    """Convert to JSON values: estimates become objects, non-finite numbers become null.

    Raises:
        TypeError: the value cannot be written as JSON.
    """
    if isinstance(value, Estimate):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"cannot convert a {type(value).__name__} to JSON: {value!r:.80}")
