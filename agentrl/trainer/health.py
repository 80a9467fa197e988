"""Health: a line, with the likely cause, when a metric leaves its healthy range; the thresholds are in health_rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from agentrl.trainer.health_history import History
from agentrl.trainer.health_rules import RULES

RECOVERED_AFTER = 50
"""Steps in a row a rule must be silent before it may warn a second time; twice as many each time after that."""


class Health:
    """Looks at each step's metrics. A rule that fires warns once, and again only after it was silent for long.

    A condition that comes and goes over n steps is so told of at most 1 + log2(1 + n / `RECOVERED_AFTER`) times.

    Args:
        tools: names of the tools that are offered.
        compares: whether advantages come from comparing the rollouts of a group.
        over_sampling: share of the groups that is planned to be begun again.
    """

    def __init__(self, tools: Iterable[str] = (), compares: bool = True, over_sampling: float = 0.0) -> None:
        self._history = History(tools=tuple(tools), compares=compares, over_sampling=over_sampling)
        self._silent_steps: dict[str, int] = {}  # of the rules that have warned, since they last fired
        self._silence_asked: dict[str, int] = {}

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """The warnings of one more step; most often none."""
        self._history.add(metrics)
        self._silent_steps = {name: steps + 1 for name, steps in self._silent_steps.items()}
        firing = {name: text for name, rule in RULES.items() if (text := rule(self._history))}
        return [text for name, text in firing.items() if self._is_news(name)]

    def _is_news(self, name: str) -> bool:
        """Whether a rule that fires has not warned yet, or has recovered since."""
        asked = self._silence_asked.get(name, 0)
        news = self._silent_steps.get(name, math.inf) > asked
        if news:
            self._silence_asked[name] = 2 * asked or RECOVERED_AFTER
        self._silent_steps[name] = 0
        return news

    def remember(self, rows: Iterable[Mapping[str, float | None]]) -> None:
        """Take in the rows of metrics.jsonl of a run that goes on; what it warned of is not said again."""
        for row in rows:
            if row["step"]:  # the validation before the first step says nothing about training
                self.check({name: math.nan if value is None else value for name, value in row.items()})
