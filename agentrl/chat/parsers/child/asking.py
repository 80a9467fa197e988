"""Questions to child processes that read turns."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from functools import cache
from typing import Any

from agentrl.concurrency.child import ChildProcess, EndedError


def ask_reader(module: str, question: Mapping[str, object]) -> dict[str, Any]:  # Any: JSON of the module
    """Return what the module answers with `forks.in_fork`: its result as `found`, or a reason as `error`."""
    try:
        return _process(module).ask(question)
    except EndedError as error:
        _process.cache_clear()
        return {"error": f"its reader {error}"}


@cache
def _process(module: str) -> ChildProcess:
    """Child process that reads turns; it runs until this process ends."""
    process = ChildProcess(module)
    atexit.register(process.close)
    process.start()
    return process
