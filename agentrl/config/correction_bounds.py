"""Parser of the bounds in `algorithm.rollout_correction`, such as 2.0, "0.5_5.0", "0.5_2.0, 0.01"."""

from __future__ import annotations

from typing import NamedTuple

from agentrl.errors import suggestion

REJECTIONS = (
    *(f"{level}_{divergence}" for level in ("token", "seq_sum", "seq_mean") for divergence in ("k1", "k2", "k3")),
    *("seq_max_k2", "seq_max_k3"),
)
"""Divergences by which a token or a rollout can be rejected, with verl's names."""


class Bounds(NamedTuple):
    """An inclusive range of kept values; `lower` None means no lower bound."""

    lower: float | None
    upper: float


class Rejection(NamedTuple):
    """A name of `REJECTIONS` and its bounds: a range of ratios around 1 for k1, else the largest divergence."""

    name: str
    bounds: Bounds


def read_weight_bounds(text: float | str) -> Bounds:
    """Parse the bounds of importance weights: a number (to truncate) or "lower_upper" (to mask).

    Raises:
        ValueError: the text has another form, or 1 (the weight of an on-policy token) is outside the bounds.
    """
    bounds = _pair(text) if "_" in str(text) else Bounds(None, _positive(text))
    return _around_one(bounds)


def read_rejections(names: str) -> tuple[str, ...]:
    """Parse comma-separated rejection names; duplicates are dropped.

    Raises:
        ValueError: an unknown name, or no name.
    """
    found = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in found:
        if name not in REJECTIONS:
            raise ValueError(f"unknown rejection '{name}': {suggestion(name, REJECTIONS)}")
    if not found:
        raise ValueError(f"name at least one of {', '.join(REJECTIONS)}")
    return found


def read_rejection_bounds(names: tuple[str, ...], text: float | str) -> tuple[Rejection, ...]:
    """Parse one bound for all `names`, or one bound each, separated by commas.

    Raises:
        ValueError: the number of bounds does not match, or a bound is invalid for its rejection.
    """
    parts = [part.strip() for part in str(text).split(",")]
    if len(parts) not in (1, len(names)):
        raise ValueError(
            f"expected one bound, or {len(names)} separated by commas (one per name in rollout_rs), not {len(parts)}"
        )
    each = parts * len(names) if len(parts) == 1 else parts
    return tuple(Rejection(name, _rejection_bounds(name, part)) for name, part in zip(names, each, strict=True))


def _rejection_bounds(name: str, text: str) -> Bounds:
    if not name.endswith("k1"):
        if "_" in text:
            raise ValueError(f"{name} needs one maximum divergence, not a range: '{text}'")
        return Bounds(None, _positive(text))
    if "_" in text:
        return _around_one(_pair(text))
    upper = _positive(text)
    return _around_one(Bounds(1 / upper, upper))


def _pair(text: float | str) -> Bounds:
    lower, _, upper = str(text).partition("_")
    return Bounds(_positive(lower), _positive(upper))


def _around_one(bounds: Bounds) -> Bounds:
    if (bounds.lower or 0.0) <= 1 <= bounds.upper:
        return bounds
    # YAML and Hydra parse 0.5_2 as the number 0.52, so a range can arrive as a number below 1
    raise ValueError("the range must contain 1 (on-policy); write both bounds with a decimal point: '0.5_2.0'")


def _positive(text: float | str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("expected a number, or a range such as '0.5_5.0'") from None
    if not 0 < number < float("inf"):
        raise ValueError("expected a positive number, or a range of positive numbers such as '0.5_5.0'")
    return number
