"""An estimate and its interval."""

from __future__ import annotations

from dataclasses import dataclass


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
