"""Local sandboxes for tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from agentrl.sandboxes import RunResult, Sandbox
from agentrl.sandboxes.local.sandbox import LocalProvider
from agentrl.sandboxes.local.settings import LocalSandbox
from agentrl.sandboxes.process import ProcessSandbox

Result = TypeVar("Result")
Identity = tuple[int, str]
"""Process id and start time, which no other process has, not even a later one with the same id."""
END_S = 120.0
"""Seconds until killed processes must have ended, on a machine of any load."""


def require_bubblewrap() -> None:
    """Skips tests that need bubblewrap if it is not installed; in CI they fail instead."""
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("bubblewrap is not installed: make bubblewrap")


def in_sandbox(work: Callable[[Sandbox], Awaitable[Result]], **settings: object) -> Result:
    """Run `work` in a new sandbox."""
    require_bubblewrap()

    async def run() -> Result:
        sandbox = await LocalProvider(LocalSandbox(**settings)).start()
        try:
            return await work(sandbox)
        finally:
            await sandbox.kill()

    return asyncio.run(run())


def python(*pieces: str, seconds: float = 20.0, **settings: object) -> list[RunResult]:
    """Run pieces of code one after another."""

    async def run(sandbox: Sandbox) -> list[RunResult]:
        return [await sandbox.run_python(piece, seconds) for piece in pieces]

    return in_sandbox(run, **settings)


def bash(command: str, seconds: float = 20.0, **settings: object) -> RunResult:
    """Run a command."""
    return in_sandbox(lambda sandbox: sandbox.run_command(command, seconds), **settings)


def processes_of(sandbox: Sandbox) -> set[Identity]:
    """The processes of one sandbox, and no other sandbox's: bubblewrap and its descendants."""
    assert isinstance(sandbox, ProcessSandbox)
    everything = {int(stat.parent.name): found for stat in Path("/proc").glob("[0-9]*/stat") if (found := _read(stat))}
    own = {sandbox._process.pid}
    while more := {number for number, (parent, _) in everything.items() if parent in own} - own:
        own |= more
    return {(number, everything[number][1]) for number in own if number in everything}


def all_ended(processes: set[Identity]) -> bool:
    """Wait until these processes have ended; whether they have."""
    pause, left_s = threading.Event(), END_S
    while left_s > 0 and any(_exists(*each) for each in processes):
        pause.wait(0.05)
        left_s -= 0.05
    return not any(_exists(*each) for each in processes)


def _exists(number: int, start: str) -> bool:
    found = _read(Path(f"/proc/{number}/stat"))
    return found is not None and found[1] == start


def _read(stat: Path) -> tuple[int, str] | None:
    """Parent and start time of a process; None if it has ended."""
    with suppress(OSError):
        fields = stat.read_text().rpartition(") ")[2].split()  # the name may contain spaces
        return int(fields[1]), fields[19]
    return None
