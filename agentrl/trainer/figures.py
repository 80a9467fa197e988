"""How metrics are named, read and written where a person sees them: on the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from agentrl.trajectory import Outcome


class Figure(NamedTuple):
    """One number a person looks at: its label, its metric, and how it is written."""

    label: str
    metric: str
    write: Callable[[float], str]


class Comparison(NamedTuple):
    """One figure before and after training; `better` is None where neither way is."""

    label: str
    before: str
    after: str
    change: str
    better: bool | None


def number(value: float) -> str:
    """About three significant digits: 0.00123, 12.3, 1,234, 12.3k, 4.56M."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if max(unit, 1e4) <= abs(value) < math.inf:
            return _short(value / unit) + suffix
    return _short(value)


def _short(value: float) -> str:
    return f"{value:,.0f}" if 100 <= abs(value) < math.inf else f"{value:.3g}"


def percent(value: float) -> str:
    """A share: 94.3%."""
    return f"{100 * value:.1f}%"


def duration(seconds: float) -> str:
    """0:38, 12:05, 3:04:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


SUCCESS = Figure("success", "success", percent)
REWARD = Figure("reward", "reward/mean", number)
TURNS = Figure("turns", "num_turns/mean", number)
RESPONSE = Figure("response tokens", "response_length/mean", number)
_CALLS = Figure("tool calls", "tool_calls", number)
_CALLS_OK = Figure("tool calls ok", "tool_calls/ok", percent)
_MORE_IS_BETTER = (SUCCESS, REWARD, _CALLS_OK)


def tool_outcomes(metrics: Mapping[str, float]) -> dict[str, float]:
    """Calls by outcome, over all tools, in the order of `Outcome`; outcomes that did not happen are left out."""
    counts = {outcome.value: 0.0 for outcome in Outcome}
    for name, value in metrics.items():
        outcome = name.rpartition("/")[2]
        if name.startswith("tool/") and outcome in counts and math.isfinite(value):
            counts[outcome] += value
    return {outcome: count for outcome, count in counts.items() if count}


def num_tool_calls(metrics: Mapping[str, float]) -> float:
    """Calls of all tools, whatever became of them."""
    return sum(value for name, value in metrics.items() if name.startswith("tool/") and name.endswith("/calls"))


def compare(before: Mapping[str, float], after: Mapping[str, float]) -> list[Comparison]:
    """The figures that both have, such as two validations; names may start with `val/` or `test/`."""
    first, last = _with_tools(before), _with_tools(after)
    known = (SUCCESS, REWARD, _CALLS, _CALLS_OK, TURNS, RESPONSE)
    return [
        _comparison(figure, first[name], last[name])
        for figure in known
        if (name := figure.metric) in first.keys() & last.keys()
    ]


def _with_tools(metrics: Mapping[str, float]) -> dict[str, float]:
    plain = {name.removeprefix("val/").removeprefix("test/"): value for name, value in metrics.items()}
    if calls := num_tool_calls(plain):
        plain |= {_CALLS.metric: calls, _CALLS_OK.metric: tool_outcomes(plain).get(Outcome.OK, 0) / calls}
    return plain


def _comparison(figure: Figure, before: float, after: float) -> Comparison:
    change = after - before
    text = f"{100 * change:+.1f} pp" if figure.write is percent else ("+" if change > 0 else "") + number(change)
    better = change > 0 if change and figure in _MORE_IS_BETTER else None
    return Comparison(figure.label, figure.write(before), figure.write(after), text, better)
