"""Runs a program, such as the answer to a coding task, in any sandbox; returns the program's standard output."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from agentrl.sandboxes.base import RunResult, Sandbox, SandboxEndedError
from agentrl.security.json_depth import parse

MARGIN_S = 10.0
"""Seconds, in addition to the program's timeout, to start the program and to end its processes."""
MAX_PROGRAM_OUTPUT_BYTES = 8 * 2**20
"""A program that writes more counts as failed."""
_INLINE_BYTES = 9_000
"""Maximum bytes of output in a reply, because a result of `Sandbox.run_python` is limited to 20,000 characters.

Longer output is downloaded as a file."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """Result of a program.

    Attributes:
        ok: whether the program ended with exit status 0.
        compiled: whether the program could be compiled.
    """

    ok: bool
    compiled: bool
    stdout: str


@runtime_checkable
class RunsPrograms(Protocol):
    """A sandbox with its own way to run programs."""

    async def run_program(self, code: str, stdin: str, deadline_s: float, language: str) -> ProgramRun:
        """Run a program in a separate process."""
        ...


async def run_program(
    sandbox: Sandbox, code: str, stdin: str, deadline_s: float, language: str = "python"
) -> ProgramRun:
    """Run a program in a separate process. No process of an earlier program runs at the same time.

    Args:
        language: only sandboxes that are `RunsPrograms` support languages other than python.

    Raises:
        SandboxEndedError: the program ended the sandbox, or left processes that cannot be killed.
        SandboxUnavailableError: the sandbox failed.
    """
    if isinstance(sandbox, RunsPrograms):
        return await sandbox.run_program(code, stdin, deadline_s, language)
    job = {"program": _encoded(code), "stdin": _encoded(stdin), "seconds": deadline_s, "inline": _INLINE_BYTES}
    text = f"{_driver()}\nKNOWN = globals().get('KNOWN') or own_processes()\nprint(reply({job!r}, KNOWN))"
    found = _reply(await sandbox.run_python(text, deadline_s + MARGIN_S))
    if found.get("alone") is not True:
        raise SandboxEndedError("the program left the sandbox unusable")
    size, output = found.get("size"), base64.b64decode(str(found.get("text")))
    if not isinstance(size, int) or size > MAX_PROGRAM_OUTPUT_BYTES:
        return ProgramRun(ok=False, compiled=True, stdout="")
    if size > _INLINE_BYTES:
        output = await sandbox.download("case/output")
    return ProgramRun(found.get("exit_code") == 0, compiled=True, stdout=output.decode("utf-8", "replace"))


def _reply(result: RunResult) -> dict[str, JsonValue]:
    """Read the reply of driver.py, which is the last line of the output; {} if there is no reply."""
    try:
        found = parse(result.output.rstrip("\n").rpartition("\n")[2].encode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) and not result.state_lost else {}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "replace")).decode()


@cache
def _driver() -> str:
    return Path(__file__).with_name("driver.py").read_text(encoding="utf-8")
