"""Child Python process that answers lines of JSON. Unlike a thread, it can be killed."""

from __future__ import annotations

import inspect
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any

from agentrl.concurrency.child_main import LIFELINE, READY
from agentrl.registry import child_path

MAX_ANSWER_BYTES = 64 * 2**20
"""Maximum size of an answer; a process with a larger answer is killed."""
CLOSE_S = 5.0
"""Timeout of each of the two waits in `close`: for a thread that still uses the process, and for the process to end."""
_POLL_MS = 200
_CHUNK = 2**16


class EndedError(Exception):
    """The process did not answer. The error text is a phrase that follows the subject "the process"."""


class ChildProcess:
    """Child process `python -m module arguments`, which calls `child_main.serve`. It answers one question at a time.

    Each question has a random id, and the answer must have the same id. If an answer has another id, the process is
    killed, because its next answers could belong to other questions.

    Raises:
        EndedError: the system cannot start another process.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._unread = b""
        self._asking = Lock()
        self._killed = self._closed = False
        try:
            self._process, self._lifeline = _start([sys.executable, "-P", "-m", module, *arguments])
        except OSError as error:
            raise EndedError(f"cannot start: {error}") from error

    def start(self) -> None:
        """Wait until the process is ready for questions.

        Raises:
            EndedError: the process ended.
        """
        with self._asking:
            self._receive(READY)

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:  # Any: JSON of the module
        """Send a question and return the answer.

        Raises:
            EndedError: the process ended or was closed, or its answer is too large or has another id.
            TypeError: the question cannot be written as JSON.
        """
        number = token_hex(8)
        line = json.dumps({"id": number, "question": question})
        with self._asking:
            if self._closed:
                raise EndedError("was closed")
            with suppress(BrokenPipeError):  # `_receive` reports a broken pipe
                assert self._process.stdin is not None
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
            return self._receive(number)

    @property
    def alive(self) -> bool:
        """Whether the process can answer another question."""
        return not self._killed and not self._has_ended()

    def kill(self) -> None:
        """Kill the process and the children in its process group; safe from any thread."""
        self._killed = True
        if self._process.returncode is None:  # the process is not reaped, so its id is not reused
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and close its pipes; returns within about `2 * CLOSE_S` seconds."""
        self.kill()
        if not self._asking.acquire(timeout=CLOSE_S):
            return  # a thread still uses the pipes
        try:
            self._closed = True
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
            for pipe in (self._process.stdin, self._process.stdout, self._lifeline):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        finally:
            self._asking.release()

    def _receive(self, number: str) -> dict[str, Any]:
        line = self._line()
        try:
            reply = json.loads(line)
            answer = reply["answer"] if reply["id"] == number else None
        except (ValueError, LookupError, TypeError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            self.kill()
            raise EndedError("answered a different question, perhaps because it forked, and was killed")
        return answer

    def _line(self) -> bytes:
        """Return the next line. Detect the end of the process even if its children keep the pipe open."""
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        poller = select.poll()
        poller.register(source, select.POLLIN)
        while b"\n" not in self._unread:
            ended = self._has_ended()  # checked before the pipe is read, so that the last output is not lost
            if poller.poll(0 if ended else _POLL_MS):
                read = os.read(source, _CHUNK)
                self._unread += read
                ended = not read
            elif not ended:
                continue
            if ended:
                self.kill()
                raise EndedError(f"ended with status {self._status()}")
            if len(self._unread) > MAX_ANSWER_BYTES:
                self.kill()
                raise EndedError(f"answered with more than {MAX_ANSWER_BYTES // 2**20} MiB and was killed")
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _has_ended(self) -> bool:
        """Whether the process has ended. The process stays a zombie until `close`, so that its id is not reused."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):  # macOS has waitid since Python 3.13
            return self._process.poll() is not None
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def _status(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(CLOSE_S)
        return None


def _start(command: list[str]) -> tuple[subprocess.Popen[bytes], Any]:  # Any: unbuffered file
    lifeline, writing = os.pipe()  # never written to; see `child_main.end_with_parent`
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": child_path(), LIFELINE: str(lifeline)},
            pass_fds=(lifeline,),
            start_new_session=True,  # so that kill() also kills its children
        )
    except OSError:
        os.close(writing)
        raise
    finally:
        os.close(lifeline)
    return process, os.fdopen(writing, "wb")


def import_path(function: Callable[..., object]) -> str:
    """Return the path with which `registry.load_object` finds the function in another process."""
    function = inspect.unwrap(function)
    module = sys.modules.get(function.__module__)
    # module names work in another process, except for `__main__` and files loaded by path
    if module is not None and module.__spec__ is not None and not module.__name__.startswith("agentrl_user_"):
        return f"{module.__name__}:{function.__name__}"
    return f"{Path(inspect.getfile(function)).resolve()}:{function.__name__}"
