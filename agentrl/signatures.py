"""Which keyword arguments a user's function takes, so that it is given no others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping


def keyword_filter(function: Callable[..., object]) -> Callable[[Mapping[str, object]], dict[str, object]]:
    """Keeps of some keyword arguments those that `function` takes: all of them where it has `**kwargs`."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return lambda arguments: {name: value for name, value in arguments.items() if name in names}
