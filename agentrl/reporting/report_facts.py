"""Facts at the top of a report: progress, dropped rollouts, and configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import JsonValue

from agentrl.reporting.formatting import DROPPED, dropped_text, duration, number, percent
from agentrl.telemetry.metrics.timing import STEP_S

Facts = list[tuple[str, str]]
Rows = Sequence[Mapping[str, float]]

_KEYS = (
    ("model", "model.path"),
    ("algorithm", "algorithm.name"),
    ("tasks per step", "data.train_batch_size"),
    ("rollouts per task", "rollout.n"),
    ("learning rate", "actor.optim.lr"),
    ("seed", "trainer.seed"),
)


def facts_of(rows: Rows, config: Mapping[str, JsonValue], best: str | None, repeats: str | None) -> Facts:
    """Return (name, value) of each known fact.

    Args:
        rows: finite metrics, one mapping per step.
    """
    if not rows:
        return [("steps", "none yet"), *_configured(config)]
    optional = {"best": best, "dropped rollouts": _dropped(rows), "reproducible": repeats}
    return [*_progress(rows, config), *_configured(config), *((name, text) for name, text in optional.items() if text)]


def sampling_of(config: Mapping[str, JsonValue]) -> str | None:
    """Return the sampling of validation (greedy or temperature, rollouts per task) as text; None if unknown."""
    how, count = how_sampled(config), lookup(config, "rollout.val_kwargs.n")
    counted = f", {count} rollout{'s' if count != 1 else ''} per task" if isinstance(count, int) else ""
    return how and f"{how}{counted}"


def how_sampled(config: Mapping[str, JsonValue]) -> str | None:
    """Return `greedy` or `sampled at temperature T` for validation; None if unknown."""
    settings = lookup(config, "rollout.val_kwargs")
    if not isinstance(settings, Mapping) or "do_sample" not in settings:
        return None
    temperature = settings.get("temperature")
    if not isinstance(temperature, int | float) or not settings["do_sample"] or temperature <= 0:
        return "greedy"
    return f"sampled at temperature {number(temperature)}"


def lookup(config: Mapping[str, JsonValue], key: str) -> JsonValue:
    """Return the value of a dotted key; None if it is missing."""
    value: Any = config  # Any: any value inside the document
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value  # type: ignore[no-any-return]  # any value inside the document


def _progress(rows: Rows, config: Mapping[str, JsonValue]) -> Iterator[tuple[str, str]]:
    total = lookup(config, "trainer.total_training_steps")
    yield "steps", f"{rows[-1]['step']:,.0f}" + (f" of {total:,}" if isinstance(total, int) else "")
    yield "time in steps", duration(sum(row.get(STEP_S.name, 0.0) for row in rows))


def _configured(config: Mapping[str, JsonValue]) -> Facts:
    return [(label, str(value)) for label, key in _KEYS if (value := lookup(config, key)) is not None]


def _dropped(rows: Rows) -> str | None:
    """Return the shares of dropped rollouts as text; None if no step has this metric."""
    training = [row[DROPPED.metric] for row in rows if DROPPED.metric in row]
    held_out = [row[name] for row in rows if (name := f"val/{DROPPED.metric}") in row]
    if not any(training + held_out):
        return "none" if training + held_out else None
    parts = [f"{percent(fmean(training))} in training (at most {percent(max(training))} in a step)"] if training else []
    if held_out:
        validation = next(row for row in reversed(rows) if f"val/{DROPPED.metric}" in row)
        counted = f" ({text})" if (text := dropped_text(validation, "val/")) else ""
        parts.append(f"{percent(held_out[-1])} in the last validation{counted}")
    return ", ".join(parts)
