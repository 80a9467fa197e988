"""Health: a line, with the likely cause, when a metric leaves its healthy range; the thresholds are in health_rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from agentrl.trainer.health_rules import RULES, History

RECOVERED_AFTER = 3
"""Steps in a row a rule must be silent before it may warn again."""


class Health:
    """Looks at each step's metrics. A rule that fires warns once, and again only after it was silent for a while.

    Args:
        tools: names of the tools that are offered.
        compares: whether advantages come from comparing the rollouts of a group.
    """

    def __init__(self, tools: Iterable[str] = (), compares: bool = True) -> None:
        self._history = History(tools=tuple(tools), compares=compares)
        self._silent_steps: dict[str, int] = {}  # of the rules that have warned and not recovered

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """The warnings of one more step; most often none."""
        self._history.add(metrics)
        firing = {name: text for name, rule in RULES.items() if (text := rule(self._history))}
        new = [text for name, text in firing.items() if name not in self._silent_steps]
        silent = {name: 0 if name in firing else steps + 1 for name, steps in self._silent_steps.items()}
        self._silent_steps = {name: steps for name, steps in silent.items() if steps < RECOVERED_AFTER}
        self._silent_steps |= dict.fromkeys(firing, 0)
        return new

    def remember(self, rows: Iterable[Mapping[str, float | None]]) -> None:
        """Take in the rows of metrics.jsonl of a run that goes on; what it warned of is not said again."""
        for row in rows:
            if row["step"]:  # the validation before the first step says nothing about training
                self.check({name: math.nan if value is None else value for name, value in row.items()})
