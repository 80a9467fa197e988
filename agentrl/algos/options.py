"""Call registered functions; unknown options raise a clear error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from agentrl.algos.user_functions import Check, call_own, is_own
from agentrl.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from agentrl.algos.base import Need, Scope

Function = TypeVar("Function", bound=Callable[..., object])
Result = TypeVar("Result")
Batch = TypeVar("Batch")


def call(
    what: str, function: Callable[..., Result], batch: Batch, options: Mapping[str, object], check: Check
) -> Result:
    """Return `function(batch, **options)`.

    Args:
        check: checks the result of a user-defined function; see `Check`.

    Raises:
        ConfigError: `function` has no such option (the message suggests the nearest one), or a user-defined function
            failed, or `check` rejects its result.
    """
    known = options_of(function)
    for option in options:
        if option not in known:
            raise ConfigError.keyless(f"{what} has no option '{option}': {suggestion(option, known)}")
    return call_own(what, function, batch, options, check) if is_own(function) else function(batch, **options)


def options_of(function: Callable[..., object]) -> list[str]:
    """Return the option names of a registered function."""
    return list(inspect.signature(function).parameters)[1:]


def with_needs(*needs: Need) -> Callable[[Function], Function]:
    """Decorator of an estimator or preference loss: declares which log-probabilities or values the function needs."""

    def declare(function: Function) -> Function:
        setattr(function, "needs", frozenset(needs))  # noqa: B010  # a plain assignment fails type checks
        return function

    return declare


def needs_of(function: Callable[..., object]) -> frozenset[Need]:
    """Return the needs that `with_needs` declared."""
    return getattr(function, "needs", frozenset())


def with_scope(scope: Scope) -> Callable[[Function], Function]:
    """Decorator of a policy loss that needs more than one row at a time: declares its scope."""

    def declare(function: Function) -> Function:
        setattr(function, "scope", scope)  # noqa: B010  # a plain assignment fails type checks
        return function

    return declare


def scope_of(function: Callable[..., object]) -> Scope:
    """Return the scope that `with_scope` declared; default `row`."""
    return getattr(function, "scope", "row")
