"""Runs functions of tools in child processes. Unlike a thread, a process can be killed at the timeout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue

from agentrl.concurrency import CircuitBreaker, Offload
from agentrl.concurrency.child import import_path
from agentrl.concurrency.pool import ChildPool, default_size
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.result import Answer

_ERRORS = {"ToolError": ToolError, "InfraError": InfraError}


class ToolFailedError(Exception):
    """A tool in a process raised an error other than ToolError and InfraError; the message names the error."""


class ToolProcesses:
    """Processes of one function, kept between calls. A call waits if all processes are busy."""

    def __init__(self, function: Callable[..., object], offload: Offload, breaker: CircuitBreaker) -> None:
        target = import_path(function)
        self._pool = ChildPool(offload, breaker, default_size(), "agentrl.tools.process_worker", target)
        self.close = self._pool.close

    async def call(self, arguments: Mapping[str, JsonValue], deadline_s: float) -> Answer:
        """Run the function once.

        Raises:
            ToolError, InfraError: the function raised this error.
            ToolFailedError: the function raised another exception.
            OverdueError: the process was killed at the timeout.
            UnavailableError: the process could not start, or ended.
        """
        return _read(await self._pool.ask(arguments, deadline_s))


def _read(reply: dict[str, Any]) -> Answer:  # Any: the JSON of process_worker
    if "error" in reply:
        raise _ERRORS.get(reply["error"], ToolFailedError)(reply["text"])
    return Answer(reply["text"], reply["reward"], reply["metrics"])
