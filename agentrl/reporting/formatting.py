"""Names and number formats of metrics on the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from agentrl.telemetry.metrics import rewards, rollouts
from agentrl.types.rollout import GUARD, Outcome

Metrics = Mapping[str, float]


class Figure(NamedTuple):
    """One displayed number: its label, its metric, and its format function."""

    label: str
    metric: str
    write: Callable[[float], str]


class Comparison(NamedTuple):
    """One metric in two validations.

    Attributes:
        better: whether the change is an improvement; None if nothing changed, or if neither a higher nor a lower value
            is better.
    """

    label: str
    before: str
    after: str
    change: str
    better: bool | None


def number(value: float, digits: int = 3) -> str:
    """Format a number with about `digits` significant digits: 0.0123, 12.3, 12,345, 1.23e5, 1.23e-4."""
    if not math.isfinite(value) or value == 0:
        return f"{value + 0.0:g}"  # 0, not -0
    if not is_plain(value):
        return scientific(value, digits - 1)
    return _without_zeros(f"{value:,.{max(0, digits - 1 - exponent(value))}f}")


def is_plain(value: float) -> bool:
    """Return whether `value` is readable without scientific notation."""
    return 1e-3 <= abs(value) < 1e5


def scientific(value: float, decimals: int) -> str:
    """Format in scientific notation with up to `decimals` decimals, without trailing zeros: 1.5e-5."""
    mantissa, _, power = f"{value:.{decimals}e}".partition("e")
    return f"{_without_zeros(mantissa)}e{int(power)}"


def exponent(value: float) -> int:
    """Return the decimal exponent of a nonzero `value`: -2 for 0.0123."""
    return math.floor(math.log10(abs(value)))


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float) -> str:
    """Format a share: 94.3%."""
    return f"{100 * value:.1f}%"


def duration(seconds: float) -> str:
    """Format a duration: 0:38, 12:05, 3:04:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


SUCCESS = Figure("success", rewards.SUCCESS.name, percent)
REWARD = Figure("reward", rewards.REWARD.name, number)
TURNS = Figure("turns", rollouts.NUM_TURNS.name, number)
RESPONSE = Figure("response tokens", rollouts.RESPONSE_LENGTH.name, number)
_CALLS = Figure("tool calls per rollout", rollouts.TOOL_CALLS.name, number)
_CALLS_OK = Figure("tool calls ok", "tool_calls/ok", percent)
DROPPED = Figure("dropped rollouts", rollouts.DROPPED.name, percent)
_MORE_IS_BETTER, _LESS_IS_BETTER = (SUCCESS, REWARD, _CALLS_OK), (DROPPED,)
_NO_PARTS = ("mean", "std")
MAX_PARTS = 8
"""Maximum number of reward components that are shown."""


def tool_outcomes(metrics: Metrics) -> dict[str, float]:
    """Return the number of calls by outcome, over all tools, in the order of `Outcome`; zeros are omitted."""
    counts = {outcome.value: 0.0 for outcome in Outcome}
    for name, value in metrics.items():
        outcome = name.rpartition("/")[2]
        if name.startswith("tool/") and outcome in counts and math.isfinite(value):
            counts[outcome] += value
    return {outcome: count for outcome, count in counts.items() if count}


def num_tool_calls(metrics: Metrics) -> float:
    """Return the number of calls of all tools, with any outcome."""
    return sum(value for name, value in metrics.items() if name.startswith("tool/") and name.endswith("/calls"))


def dropped_text(metrics: Metrics, prefix: str = "") -> str | None:
    """Return the number of dropped rollouts as text ("47 of 320 rollouts"), and the success rate of all rollouts.

    Return None if no rollout was dropped.

    Args:
        prefix: `val/` for validation.
    """
    share, num = metrics.get(f"{prefix}{DROPPED.metric}"), metrics.get(f"{prefix}{rollouts.NUM_DROPPED.name}")
    if not share or not num:
        return None
    text = f"{num:,.0f} of {num / share:,.0f} rollouts"
    of_all = metrics.get(f"{prefix}{rewards.SUCCESS_ALL.name}")
    return text if of_all is None else f"{text}; success of all rollouts {percent(of_all)}"


def first_and_last(history: Iterable[Metrics]) -> tuple[Metrics, Metrics] | None:
    """Return the first and the last validation of a run, each with its `step`; None if there are fewer than two."""
    held_out = [
        {name: value for name, value in row.items() if name == "step" or name.startswith("val/")}
        for row in history
        if any(name.startswith("val/") for name in row)
    ]
    return (held_out[0], held_out[-1]) if len(held_out) > 1 else None


def moment(validation: Metrics, otherwise: str) -> str:
    """Return the step of a validation as text; `otherwise` if the validation has no step."""
    if (step := validation.get("step")) is None:
        return otherwise
    return f"step {step:,.0f}" if step else "before training"


def compare(before: Metrics, after: Metrics) -> list[Comparison]:
    """Compare the displayed metrics that both validations contain; names may start with `val/` or `test/`."""
    first, last = _with_tools(before), _with_tools(after)
    parts = [Figure(name, f"reward/{name}", number) for name in reward_parts({**first, **last})]
    dropped = (DROPPED,) if first.get(DROPPED.metric) or last.get(DROPPED.metric) else ()
    known = (SUCCESS, REWARD, *parts, _CALLS, _CALLS_OK, TURNS, RESPONSE, *dropped)
    return [
        _comparison(figure, first[name], last[name])
        for figure in known
        if (name := figure.metric) in first.keys() & last.keys()
    ]


def reward_parts(metrics: Iterable[str]) -> list[str]:
    """Return up to `MAX_PARTS` names of reward components (training or validation), without score and guards."""
    plain = (name.removeprefix("val/") for name in metrics)
    named = {name.removeprefix("reward/") for name in plain if name.startswith("reward/")}
    return sorted(name for name in named if name not in _NO_PARTS and not name.startswith(GUARD))[:MAX_PARTS]


def _with_tools(metrics: Metrics) -> dict[str, float]:
    plain = {name.removeprefix("val/").removeprefix("test/"): value for name, value in metrics.items()}
    if calls := num_tool_calls(plain):
        plain |= {_CALLS_OK.metric: tool_outcomes(plain).get(Outcome.OK, 0) / calls}
    return plain


def _comparison(figure: Figure, before: float, after: float) -> Comparison:
    change = after - before
    text = f"{100 * change:+.1f} pp" if figure.write is percent else ("+" if change > 0 else "") + number(change)
    if figure.write(before) == figure.write(after) or not float(text.removesuffix(" pp").replace(",", "")):
        return Comparison(figure.label, figure.write(before), figure.write(after), "no change", None)
    judged = figure in _MORE_IS_BETTER or figure in _LESS_IS_BETTER
    better = (change > 0) is (figure in _MORE_IS_BETTER) if judged else None
    return Comparison(figure.label, figure.write(before), figure.write(after), text, better)
