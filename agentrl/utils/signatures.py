"""Inspection of a user function's parameters, so that the function gets only arguments that it accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from agentrl.errors import ConfigError


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function for messages and metrics; for a partial or an object, its type name."""
    return str(getattr(function, "__name__", type(function).__name__))


def parameters_of(function: Callable[..., object], what: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function.

    Args:
        what: name of the function in the error message.

    Raises:
        ConfigError: Python cannot inspect the function, for example one that is written in C.
    """
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError.keyless(f"{what} has no readable signature: wrap it in a Python function") from error


def keyword_filter(function: Callable[..., object]) -> Callable[[Mapping[str, object]], dict[str, object]]:
    """Return a filter that keeps the keyword arguments `function` accepts; with `**kwargs` it keeps all."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return lambda arguments: {name: value for name, value in arguments.items() if name in names}
