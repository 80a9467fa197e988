"""How metrics are named, read and written where a person sees them: on the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from agentrl.attempt import Outcome

Metrics = Mapping[str, float]


class Figure(NamedTuple):
    """One number a person looks at: its label, its metric, and how it is written."""

    label: str
    metric: str
    write: Callable[[float], str]


class Comparison(NamedTuple):
    """One figure of two validations; `better` is None where neither way is."""

    label: str
    before: str
    after: str
    change: str
    better: bool | None


def number(value: float, digits: int = 3) -> str:
    """About so many significant digits: 0.0123, 12.3, 12,345, 1.23e5, 1.23e-4."""
    if not math.isfinite(value) or value == 0:
        return f"{value + 0.0:g}"  # 0, not -0
    if not is_plain(value):
        return scientific(value, digits - 1)
    return _without_zeros(f"{value:,.{max(0, digits - 1 - exponent(value))}f}")


def is_plain(value: float) -> bool:
    """Whether `value` is of a size that is read without powers of ten."""
    return 1e-3 <= abs(value) < 1e5


def scientific(value: float, decimals: int) -> str:
    """1.5e-5, with so many decimals less the zeros that end them."""
    mantissa, _, power = f"{value:.{decimals}e}".partition("e")
    return f"{_without_zeros(mantissa)}e{int(power)}"


def exponent(value: float) -> int:
    """Of the power of ten that the first digit of `value`, which is not 0, stands for."""
    return math.floor(math.log10(abs(value)))


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


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


def tool_outcomes(metrics: Metrics) -> dict[str, float]:
    """Calls by outcome, over all tools, in the order of `Outcome`; outcomes that did not happen are left out."""
    counts = {outcome.value: 0.0 for outcome in Outcome}
    for name, value in metrics.items():
        outcome = name.rpartition("/")[2]
        if name.startswith("tool/") and outcome in counts and math.isfinite(value):
            counts[outcome] += value
    return {outcome: count for outcome, count in counts.items() if count}


def num_tool_calls(metrics: Metrics) -> float:
    """Calls of all tools, whatever became of them."""
    return sum(value for name, value in metrics.items() if name.startswith("tool/") and name.endswith("/calls"))


def first_and_last(history: Iterable[Metrics]) -> tuple[Metrics, Metrics] | None:
    """The first and the last validation in the rows of a run, each with its `step`; None where there is one at most."""
    held_out = [
        {name: value for name, value in row.items() if name == "step" or name.startswith("val/")}
        for row in history
        if any(name.startswith("val/") for name in row)
    ]
    return (held_out[0], held_out[-1]) if len(held_out) > 1 else None


def moment(validation: Metrics, otherwise: str) -> str:
    """When a validation was; `otherwise` where it does not say."""
    if (step := validation.get("step")) is None:
        return otherwise
    return f"step {step:,.0f}" if step else "before training"


def compare(before: Metrics, after: Metrics) -> list[Comparison]:
    """The figures that both have, such as two validations; names may start with `val/` or `test/`."""
    first, last = _with_tools(before), _with_tools(after)
    known = (SUCCESS, REWARD, _CALLS, _CALLS_OK, TURNS, RESPONSE)
    return [
        _comparison(figure, first[name], last[name])
        for figure in known
        if (name := figure.metric) in first.keys() & last.keys()
    ]


def _with_tools(metrics: Metrics) -> dict[str, float]:
    plain = {name.removeprefix("val/").removeprefix("test/"): value for name, value in metrics.items()}
    if calls := num_tool_calls(plain):
        plain |= {_CALLS.metric: calls, _CALLS_OK.metric: tool_outcomes(plain).get(Outcome.OK, 0) / calls}
    return plain


def _comparison(figure: Figure, before: float, after: float) -> Comparison:
    change = after - before
    text = f"{100 * change:+.1f} pp" if figure.write is percent else ("+" if change > 0 else "") + number(change)
    better = change > 0 if change and figure in _MORE_IS_BETTER else None
    return Comparison(figure.label, figure.write(before), figure.write(after), text, better)
