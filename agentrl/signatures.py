"""Which keyword arguments a user's function takes, so that it is given no others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from agentrl.errors import ConfigError


def name_of(function: Callable[..., object]) -> str:
    """What a function is called in messages and metrics; a partial or an object goes by its kind."""
    return str(getattr(function, "__name__", type(function).__name__))


def parameters_of(function: Callable[..., object], what: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function.

    Raises:
        ConfigError: Python knows none of them, as with some functions written in C; `what` names it.
    """
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} has no signature to call it by: wrap it in a function of your own") from error


def keyword_filter(function: Callable[..., object]) -> Callable[[Mapping[str, object]], dict[str, object]]:
    """Keeps of some keyword arguments those that `function` takes: all of them where it has `**kwargs`."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return lambda arguments: {name: value for name, value in arguments.items() if name in names}
