"""Calls a registered function, turning an option it does not take into a clear error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from agentrl.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from agentrl.algos.base import Need, Scope

Function = TypeVar("Function", bound=Callable[..., object])
Result = TypeVar("Result")
Batch = TypeVar("Batch")


def call(what: str, function: Callable[..., Result], batch: Batch, options: Mapping[str, object]) -> Result:
    """`function(batch, **options)`.

    Raises:
        ConfigError: an option that `function` does not take; names the nearest one it does.
    """
    known = options_of(function)
    for option in options:
        if option not in known:
            raise ConfigError(f"{what} takes no option '{option}': {suggestion(option, known)}")
    return function(batch, **options)


def options_of(function: Callable[..., object]) -> list[str]:
    """The names of the options that a registered function takes."""
    return list(inspect.signature(function).parameters)[1:]


def needing(*needs: Need) -> Callable[[Function], Function]:
    """Decorator of an advantage estimator: what must be scored before it is called."""

    def declare(function: Function) -> Function:
        setattr(function, "needs", frozenset(needs))  # noqa: B010  # of any callable
        return function

    return declare


def needs_of(function: Callable[..., object]) -> frozenset[Need]:
    """What `needing` said."""
    return getattr(function, "needs", frozenset())


def looking_at(scope: Scope) -> Callable[[Function], Function]:
    """Decorator of a policy loss: what it looks at together, where that is more than a row at a time."""

    def declare(function: Function) -> Function:
        setattr(function, "scope", scope)  # noqa: B010  # of any callable
        return function

    return declare


def scope_of(function: Callable[..., object]) -> Scope:
    """What `looking_at` said."""
    return getattr(function, "scope", "row")
