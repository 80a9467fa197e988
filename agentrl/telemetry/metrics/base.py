"""Declaration of a metric."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_WORDS = {"age": r"\d+", "reason": "[a-z_]+", "outcome": "[a-z_]+"}
"""Regular expression for each `<word>` in metric names; other words match any text."""


class Range(NamedTuple):
    """Healthy values of a metric, both limits included."""

    lowest: float = -math.inf
    highest: float = math.inf

    def __str__(self) -> str:
        if self.lowest == self.highest:
            return f"{self.lowest:g}"
        if math.isinf(self.lowest):
            return f"at most {self.highest:g}"
        return f"at least {self.lowest:g}" if math.isinf(self.highest) else f"{self.lowest:g} to {self.highest:g}"


class Row(NamedTuple):
    """Where the console shows a metric: the title of the row, and the text around the value.

    Attributes:
        place: position in the row; metrics with the same `place` are shown in order of declaration.
    """

    title: str
    text: str = "{}"
    place: int = 0


class Line(NamedTuple):
    """Where the report draws a metric: the title of the chart, and the label of the line."""

    chart: str
    label: str


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of metrics.

    Attributes:
        name: may contain placeholders: `<age>` matches digits, `<reason>` and `<outcome>` match lower-case names, any
            other `<word>` matches any text.
        unit: unit of the values; "" for plain numbers.
        meaning: one-line description.
        healthy: the values that cause no warning; None if no fixed range is healthy.
        console: the metric's place on the console; None if it has no fixed place there.
        report: the chart in the report; None: a separate chart.
        viewer: the position in the overview of the viewer; None: only shown in the group of its prefix.
    """

    name: str
    unit: str
    meaning: str
    healthy: Range | None = None
    console: Row | None = None
    report: Line | None = None
    viewer: int | None = None

    @property
    def lowest(self) -> float:
        """The lowest healthy value; minus infinity without a limit."""
        return self.healthy.lowest if self.healthy else -math.inf

    @property
    def highest(self) -> float:
        """The highest healthy value; infinity without a limit."""
        return self.healthy.highest if self.healthy else math.inf

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of the names that this declaration covers."""
        return re.compile(re.sub("<([a-z_]+)>", lambda found: _WORDS.get(found[1], ".+"), self.name))
