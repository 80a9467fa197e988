"""A Python process of our own that answers lines of JSON, and can be killed where a thread cannot."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.offload.serving import LIFELINE


class EndedError(Exception):
    """The process ended in place of an answer; the text says with which status."""


class ChildProcess:
    """Runs `python -m module arguments`, which calls `offload.serving.serve`; one question at a time."""

    def __init__(self, module: str, *arguments: str) -> None:
        lifeline, writing = os.pipe()  # never written to; see `serving.end_with_parent`
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, LIFELINE: str(lifeline)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
            pass_fds=(lifeline,),
            start_new_session=True,  # so that kill() takes its children too
        )
        os.close(lifeline)
        self._lifeline = os.fdopen(writing, "wb")

    def start(self) -> None:
        """Wait until it is ready for questions.

        Raises:
            EndedError: it ended instead.
        """
        self._read()

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:  # Any: the JSON that its module writes
        """What it answers.

        Raises:
            EndedError: it ended instead.
            TypeError: the question holds something that is no JSON.
        """
        line = json.dumps(question)
        with suppress(BrokenPipeError):  # the read that follows tells
            print(line, file=self._process.stdin, flush=True)
        return self._read()

    @property
    def alive(self) -> bool:
        """Whether it can serve another call."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it, whatever it is doing; safe from any thread."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and close its pipes."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._lifeline):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise EndedError(f"ended with status {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply


def import_path(function: Callable[..., object]) -> str:
    """What `registry.load_object` finds the function by in another process."""
    function = inspect.unwrap(function)
    module = sys.modules.get(function.__module__)
    # __main__, and files loaded by their path, have no name that another process could import
    if module is not None and module.__spec__ is not None and not module.__name__.startswith("agentrl_user_"):
        return f"{module.__name__}:{function.__name__}"
    return f"{Path(inspect.getfile(function)).resolve()}:{function.__name__}"
