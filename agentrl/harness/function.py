"""Harnesses that are coroutine functions written by the user."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.errors import AgentRLError, ConfigError, Kind
from agentrl.harness.endpoint import Endpoint, FunctionFailedError
from agentrl.harness.process import Ended
from agentrl.harness.settings import KEY, Harness
from agentrl.registry import load_object
from agentrl.tools.base import InfraError
from agentrl.types.task import Task
from agentrl.utils.user_code import format_error

Run = Callable[[Task, Endpoint], Awaitable[object]]


def load_function(harness: Harness) -> Run:
    """Load the configured function. Its file is looked up in the settings file's folder, then in the working folder.

    Raises:
        ConfigError, UnknownNameError: there is no such function, or it is not a coroutine function.
    """
    assert harness.settings.function is not None
    named = harness.settings.function
    file, separator, name = named.rpartition(":")
    if file.endswith(".py") and (beside := harness.folder / Path(file).expanduser()).is_file():
        named = f"{beside}{separator}{name}"
    function: Run = load_object(named)
    if not inspect.iscoroutinefunction(function):
        raise ConfigError.at(
            KEY,
            Kind.WRONG_VALUE,
            f"`{KEY}`: '{named}' must be a coroutine function, `async def {name}(task, endpoint)`; run blocking code"
            " in it with asyncio.to_thread",
        )
    return function


async def run_function(function: Run, task: Task, endpoint: Endpoint) -> tuple[Ended, float | None]:
    """Call the function; return how it ended, and the score if it returned a number.

    An exception counts as exit code 1.

    Raises:
        InfraError, AgentRLError: the function raised the error.
        TypeError: the function returned neither None nor a finite number.
    """
    try:
        returned = await function(task, endpoint)
    except (InfraError, AgentRLError):
        raise
    except FunctionFailedError as error:
        return Ended(1, str(error)), None
    except Exception as error:  # user code may raise any error
        return Ended(1, format_error(error)), None
    return Ended(0, ""), _score(returned)


def _score(returned: object) -> float | None:
    if returned is None:
        return None
    if isinstance(returned, bool) or not isinstance(returned, int | float) or not math.isfinite(returned):
        raise TypeError(f"a harness must return None or a finite number, not {returned!r:.100}")
    return float(returned)
