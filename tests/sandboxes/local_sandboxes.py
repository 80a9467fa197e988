"""Local sandboxes for tests."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from agentrl.sandboxes import RunResult, Sandbox
from agentrl.sandboxes.local.sandbox import LocalProvider
from agentrl.sandboxes.local.settings import LocalSandbox

Result = TypeVar("Result")


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
