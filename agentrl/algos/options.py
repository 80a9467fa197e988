"""Calls a registered function, turning an option it does not take into a clear error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from agentrl.errors import ConfigError, suggestion

Result = TypeVar("Result")
Batch = TypeVar("Batch")


def call(what: str, function: Callable[..., Result], batch: Batch, options: Mapping[str, object]) -> Result:
    """`function(batch, **options)`.

    Raises:
        ConfigError: an option that `function` does not take; names the nearest one it does.
    """
    known = list(inspect.signature(function).parameters)[1:]
    for option in options:
        if option not in known:
            raise ConfigError(f"{what} takes no option '{option}': {suggestion(option, known)}")
    return function(batch, **options)
