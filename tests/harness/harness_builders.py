"""Test helpers: settings of harnesses, their processes, and what they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from agentrl.harness import places
from agentrl.harness.places import open_place
from agentrl.harness.process import Ended, HarnessProcess, Job
from agentrl.harness.settings import Harness, HarnessSettings

PROGRAM = Path(__file__).with_name("harness_program.py")

KINDS = ["namespaces", "sandbox", "plain"]
"""A place with bubblewrap, one that is a local sandbox, and one without bubblewrap."""


def harness(**settings: object) -> Harness:
    """Return settings whose file would be in the folder of the tests."""
    return Harness("tested", PROGRAM.parent, HarnessSettings.model_validate({"command": ["x"], **settings}))


def of_kind(kind: str, monkeypatch: pytest.MonkeyPatch, **settings: object) -> Harness:
    """Return settings for a kind of place."""
    if kind == "plain":
        monkeypatch.setattr(places, "namespaces_problem", lambda: "bubblewrap is hidden by the test")
    else:
        assert places.namespaces_problem() is None
    return harness(**({"sandbox": "local", **settings} if kind == "sandbox" else settings))


def run(
    given: Harness,
    command: list[str],
    files: Mapping[str, str] | None = None,
    stdin: str = "",
    template: Path | None = None,
    until: Callable[[HarnessProcess], Awaitable[Ended]] = HarnessProcess.wait,
) -> Ended:
    """Run a command to its end, and remove its place."""

    async def whole() -> Ended:
        place = open_place(given, None, str(template) if template else None)
        env = {"PATH": place.path, "HOME": place.home, "LANG": "C.UTF-8"}
        process = await HarnessProcess.start(place, Job(command, env, files or {}, stdin))
        try:
            return await until(process)
        finally:
            await process.close()
            place.remove()

    return asyncio.run(whole())


def new_mark() -> str:
    """Return an argument by which processes are found."""
    return f"mark-{uuid4().hex}"


def processes(mark: str) -> Iterator[int]:
    """Yield the running processes that have the mark as an argument."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words:
            yield int(path.parent.name)
