"""Health monitor: warns with the likely cause when a metric is unhealthy. Thresholds are in `rules`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from agentrl.reporting.health.history import History
from agentrl.reporting.health.rules import RULES

RECOVERED_AFTER = 50
"""Number of consecutive steps without firing after which a rule may warn a second time. The number doubles with each
further warning of the rule."""


class Health:
    """Checks each step's metrics. A rule warns when it first fires, and again only after many steps without firing.

    So a rule that fires on and off over n steps causes at most 1 + log2(1 + n / `RECOVERED_AFTER`) warnings.

    Args:
        tools: names of the offered tools.
        compares: whether advantages depend on how the rewards of a group differ.
        over_sampling: share of groups that over-sampling is expected to requeue.
    """

    def __init__(self, tools: Iterable[str] = (), compares: bool = True, over_sampling: float = 0.0) -> None:
        self._history = History(tools=tuple(tools), compares=compares, over_sampling=over_sampling)
        self._silent_steps: dict[str, int] = {}  # steps since the last firing, for rules that have warned
        self._silence_asked: dict[str, int] = {}

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """Add a step and return its warnings, usually none."""
        self._history.add(metrics)
        self._silent_steps = {name: steps + 1 for name, steps in self._silent_steps.items()}
        firing = {name: text for name, rule in RULES.items() if (text := rule(self._history))}
        return [text for name, text in firing.items() if self._is_news(name)]

    def _is_news(self, name: str) -> bool:
        """Return whether a rule that fires should warn: it has not warned yet, or last fired enough steps ago."""
        asked = self._silence_asked.get(name, 0)
        news = self._silent_steps.get(name, math.inf) > asked
        if news:
            self._silence_asked[name] = 2 * asked or RECOVERED_AFTER
        self._silent_steps[name] = 0
        return news

    def remember(self, rows: Iterable[Mapping[str, float | None]]) -> None:
        """Add the rows of metrics.jsonl of a resumed run, so that earlier warnings are not repeated."""
        for row in rows:
            if row["step"]:  # step 0 is the validation before training
                self.check({name: math.nan if value is None else value for name, value in row.items()})
