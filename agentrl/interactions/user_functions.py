"""Functions, named in the settings of a simulated user, that score a turn of the model or end the conversation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from agentrl.concurrency import CircuitBreaker, Offload, OverdueError, Work
from agentrl.errors import ConfigError
from agentrl.registry import load_object
from agentrl.tools.base import InfraError
from agentrl.types.messages import Message

TIMEOUT_S = 60.0
_OFFLOAD = Offload()


class UserFunction:
    """Calls a function with the messages and the row's keyword arguments, with a timeout. The function may be async.

    Raises:
        ConfigError, UnknownNameError: `name` cannot be imported, or is not a function.
    """

    def __init__(self, name: str) -> None:
        self._function: Callable[..., object] = load_object(name)
        self._breaker = CircuitBreaker(f"function '{name}'")
        if not callable(self._function):
            raise ConfigError.keyless(f"'{name}' is not a function")

    async def __call__(self, messages: Sequence[Message], row: Mapping[str, object]) -> object:
        """Return the function's result.

        Raises:
            InfraError: the function does not end in time.
        """
        call = partial(self._function, list(messages), **row)
        try:
            if inspect.iscoroutinefunction(self._function):
                return await _OFFLOAD.run(cast("Work[object]", call), TIMEOUT_S, self._breaker)
            return await _OFFLOAD.run_function(call, TIMEOUT_S, self._breaker)
        except OverdueError:
            raise InfraError(f"{self._breaker.name} took longer than {TIMEOUT_S:g} seconds") from None
