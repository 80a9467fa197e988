"""An estimate and its interval, and figures as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import JsonValue


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, and between which it lies with the confidence that was asked for.

    Attributes:
        num: how many independent observations it rests on (tasks, not rollouts).
        low, high: None where they cannot be told, as from one observation.
    """

    value: float
    low: float | None
    high: float | None
    num: int

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.value:.4g}{interval}"


def plain(value: object) -> JsonValue:
    """As JSON has it: estimates as objects, what is no finite number as null.

    Raises:
        TypeError: there is no way to say it in JSON.
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
    raise TypeError(f"a {type(value).__name__} among figures: {value!r:.80}")
