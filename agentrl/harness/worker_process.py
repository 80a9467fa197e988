"""A process in another interpreter. Requests and answers are lines of JSON."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.tools.base import InfraError

MAX_LINE_BYTES = 2**20
"""Maximum size of an answer."""
_SHOWN_LINES = 5
_END_S = 5.0
_REST_S = 1.0
"""Seconds to read the rest of the output of a process that has ended."""

Message = Mapping[str, JsonValue]


def variables_of(python: Path, kept: Sequence[str] = ()) -> dict[str, str]:
    """Return environment variables for a process of an interpreter; the interpreter's folder comes first in PATH.

    Args:
        kept: prefixes of names. Variables of this process whose names start with such a prefix are passed on, too.
    """
    path = f"{python.absolute().parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    own = {name: value for name, value in os.environ.items() if kept and name.upper().startswith(tuple(kept))}
    return {**own, "PATH": path, "HOME": str(Path.home()), "LANG": "C.UTF-8"}


@dataclass(slots=True)
class _Waiting:
    """A request that has no answer yet.

    Attributes:
        receive: function that the reading thread calls with each message about the request except its answer.
    """

    receive: Callable[[Message], object] | None
    answer: Future[Message] = field(default_factory=Future)


class WorkerProcess:
    """A process that starts with the first request, and serves callers on any event loop.

    Args:
        name: name of the process, for error messages.
        variables: environment variables of the process.
        start_timeout_s: seconds in which the process must be ready.
        clean: function that removes secrets from the standard error of the process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        start_timeout_s: float,
        clean: Callable[[str], str] = str,
    ) -> None:
        self._name, self._command, self._variables = name, [*command], dict(variables)
        self._start_timeout_s, self._clean = start_timeout_s, clean
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: Future[None] = Future()
        self._waiting: dict[int, _Waiting] = {}
        self._numbers, self._lock = count(), threading.Lock()
        self._unsent: SimpleQueue[bytes | None] = SimpleQueue()
        self._errors: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._failure: Callable[[], Exception] | None = None

    @property
    def failed(self) -> bool:
        """Whether the process did not start, or has ended."""
        return self._failure is not None

    async def ask(self, request: Message, receive: Callable[[Message], object] | None = None) -> Message:
        """Return the answer to a request. If the caller is cancelled, the request is cancelled too.

        Args:
            receive: function that the reading thread calls with a message about the request, if the message has the
                key `call` or `stop`.

        Raises:
            InfraError: the process does not start, has ended, or sent an invalid message.
            ConfigError: the process refused to start.
        """
        self._start()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await asyncio.shield(asyncio.wrap_future(self._ready))
        except TimeoutError:
            why = f"{self._name} did not start in {self._start_timeout_s:g} seconds{self._said()}"
            raise InfraError(why) from None
        number, waiting = next(self._numbers), _Waiting(receive)
        self._waiting[number] = waiting
        try:
            if self._failure is not None:  # the process ended before it got this request
                raise self._failure()
            self.send({"id": number, **request})
            return await asyncio.wrap_future(waiting.answer)
        except asyncio.CancelledError:
            self.send({"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)

    def send(self, message: Message) -> None:
        """Send a message. Does not wait or raise: the thread that reads the output notices the end of the process."""
        self._unsent.put(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """End the process and all processes that it started."""
        if (process := self._process) is None:
            return
        self._process = None
        atexit.unregister(self.close)
        self._unsent.put(None)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        _kill(process)
        process.wait()

    def _start(self) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure()
            if self._process is not None:
                return
            try:
                self._process = process = subprocess.Popen(
                    self._command,
                    env=self._variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                why = f"{self._name} cannot be started: '{self._command[0]}': {error.strerror}"
                self._fail(why)
                raise InfraError(why) from error
        atexit.register(self.close)
        reading = [_thread(self._read, process), _thread(self._read_errors, process)]
        _thread(self._write, process)
        _thread(self._watch, process, reading)

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with suppress(OSError), process.stdin as pipe:
            while (line := self._unsent.get()) is not None:
                pipe.write(line)
                pipe.flush()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as pipe:
            try:
                while line := pipe.readline(MAX_LINE_BYTES):
                    self._receive(line)
            except UnreadableAnswerError as error:
                self._fail(f"{self._name} sent {error}")
        _kill(process)  # the process can send no further answer

    def _receive(self, line: bytes) -> None:
        message = read_json(line)
        if not isinstance(message, dict):
            raise UnreadableAnswerError(f"sent {line[:100]!r}, expected a JSON object")
        if message.get("ready"):
            with suppress(InvalidStateError):  # the process failed before, or sent "ready" twice
                self._ready.set_result(None)
        if refused := message.get("refused"):
            self._fail(f"{self._name}: {refused}", ConfigError.keyless)
        number = message.get("id")
        if (waiting := self._waiting.get(number) if isinstance(number, int) else None) is None:
            return
        if waiting.receive is not None and ("call" in message or "stop" in message):
            waiting.receive(message)
        else:
            with suppress(InvalidStateError):  # the request was cancelled or failed meanwhile
                waiting.answer.set_result(message)

    def _read_errors(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as pipe:
            while line := pipe.readline(MAX_LINE_BYTES):
                self._errors.append(line.decode(errors="replace").strip()[:300])

    def _watch(self, process: subprocess.Popen[bytes], reading: Sequence[threading.Thread]) -> None:
        process.wait()
        for thread in reading:
            thread.join(_REST_S)  # a child of the process may keep the pipes open
        self._fail(f"{self._name} has ended{self._said()}")
        _kill(process)
        self._unsent.put(None)
        self._process = None  # the system may reuse the process id, and `close` must not end the new process
        atexit.unregister(self.close)

    def _fail(self, why: str, kind: Callable[[str], Exception] = InfraError) -> None:
        if self._failure is None:
            self._failure = lambda: kind(why)
        with suppress(InvalidStateError):  # the process was ready, or failed before
            self._ready.set_exception(self._failure())
        for waiting in [*self._waiting.values()]:
            with suppress(InvalidStateError):  # answered or cancelled meanwhile
                waiting.answer.set_exception(self._failure())

    def _said(self) -> str:
        text = self._clean("\n".join(self._errors)).strip()
        return f": {' | '.join(text.splitlines())}" if text else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _thread(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name="agentrl-worker", daemon=True)
    thread.start()
    return thread
