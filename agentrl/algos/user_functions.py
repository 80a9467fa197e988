"""Calls of user-defined estimators and losses. Failures and wrong results become one-line errors with file and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from agentrl.errors import AgentRLError, ConfigError
from agentrl.utils.user_code import defined_at, format_error

Result = TypeVar("Result")
Batch = TypeVar("Batch")

Check = Callable[[object], str]
"""Returns an error text if a value is wrong, else an empty string."""


def is_own(function: Callable[..., object]) -> bool:
    """Whether the function is user-defined. Errors of agentrl's own functions are bugs, so they are not caught."""
    return not str(getattr(inspect.unwrap(function), "__module__", "")).startswith("agentrl.")


def call_own(
    what: str, function: Callable[..., Result], batch: Batch, options: Mapping[str, object], check: Check
) -> Result:
    """Return `function(batch, **options)`.

    Raises:
        ConfigError: the function failed, or `check` rejects its result.
    """
    try:
        returned = function(batch, **options)
    except AgentRLError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise ConfigError.keyless(f"{what} failed: {format_error(error)}") from error
    if wrong := check(returned):
        raise ConfigError.keyless(f"{what} {wrong}{defined_at(function)}")
    return returned


def wrong_tensors(returned: object, names: Sequence[str], shape: Sequence[int], mask: Tensor | None = None) -> str:
    """Check a tuple of tensors (number, shape, dtype, finite values where `mask` is true); return an error text."""
    if not isinstance(returned, tuple) or len(returned) != len(names):
        return f"must return ({', '.join(names)}), not {_shown(returned)}"
    wrong = (wrong_tensor(value, name, shape, mask) for name, value in zip(names, returned, strict=True))
    return next(filter(None, wrong), "")


def wrong_tensor(value: object, name: str, shape: Sequence[int], mask: Tensor | None = None) -> str:
    """Check one tensor (shape, dtype, finite values where `mask` is true); return an error text."""
    if not isinstance(value, Tensor):
        return f"must return {name} as a tensor, not {_shown(value)}"
    if list(value.shape) != list(shape):
        return f"returned {name} of shape {list(value.shape)}, expected {list(shape)}"
    if not value.is_floating_point():
        return f"returned {name} as {value.dtype}, expected floating point"
    where = value if mask is None else value[mask.bool()]
    return "" if torch.isfinite(where).all() else f"returned {name} that are not finite on trained tokens"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}" + (f" of shape {list(value.shape)}" if isinstance(value, Tensor) else "")
