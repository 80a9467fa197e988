"""The process of `bridge.py`: requests and answers as lines of JSON."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO

from pydantic import JsonValue

from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.tools.base import InfraError

BRIDGE = Path(__file__).with_name("bridge.py")
MAX_LINE_BYTES = 2**20
"""Maximum size of an answer."""
_SHOWN_LINES = 5
_END_S = 5.0

Answer = Mapping[str, JsonValue]


class BridgeProcess:
    """Starts the process with the first request. It serves callers on any event loop.

    Args:
        variables: its environment variables.
        start_timeout_s: seconds until it is ready.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], start_timeout_s: float) -> None:
        self._command, self._variables, self._start_timeout_s = [*command], dict(variables), start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: Future[None] = Future()
        self._waiting: dict[int, Future[Answer]] = {}
        self._numbers, self._lock = count(), threading.Lock()
        self._errors: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._failure = ""

    async def ask(self, request: Answer) -> Answer:
        """Return the answer to a request. If the caller is cancelled, the request is cancelled too.

        Raises:
            InfraError: the process does not start, has ended, or sent nonsense.
        """
        self._start()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await asyncio.shield(asyncio.wrap_future(self._ready))
        except TimeoutError:
            raise InfraError(f"verifiers did not start in {self._start_timeout_s:g} seconds{self._said()}") from None
        number, answer = next(self._numbers), Future[Answer]()
        self._waiting[number] = answer
        if self._failure:  # it ended before it could know of this request
            del self._waiting[number]
            raise InfraError(self._failure)
        await asyncio.to_thread(self._send, {"id": number, **request})
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            self._send({"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """End the process and everything that it started."""
        if (process := self._process) is None:
            return
        self._process = None
        with suppress(OSError):
            _pipe(process.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self) -> None:
        with self._lock:
            if self._failure:
                raise InfraError(self._failure)
            if self._process is not None:
                return
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env=self._variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                self._failure = f"verifiers cannot be started: '{self._command[0]}': {error.strerror}"
                raise InfraError(self._failure) from error
        atexit.register(self.close)
        for target, pipe in ((self._read, self._process.stdout), (self._read_errors, self._process.stderr)):
            threading.Thread(target=target, args=(_pipe(pipe),), name="agentrl-verifiers", daemon=True).start()

    def _send(self, message: Answer) -> None:
        with self._lock, suppress(OSError, ValueError):  # its end is noticed where it is read
            pipe = _pipe(self._process.stdin if self._process else None)
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            try:
                while line := pipe.readline(MAX_LINE_BYTES):
                    self._receive(line)
                self._fail(f"verifiers has ended{self._said()}")
            except UnreadableAnswerError as error:
                self._fail(f"verifiers sent {error}")

    def _receive(self, line: bytes) -> None:
        answer = read_json(line)
        if not isinstance(answer, dict):
            raise UnreadableAnswerError(f"{line[:100]!r} in place of an object")
        if answer.get("ready") and not self._ready.done():
            self._ready.set_result(None)
        number = answer.get("id")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is not None and waiting.set_running_or_notify_cancel():
            waiting.set_result(answer)

    def _fail(self, why: str) -> None:
        self._failure = why
        if not self._ready.done():
            self._ready.set_exception(InfraError(why))
        for answer in [*self._waiting.values()]:
            if not answer.done():
                answer.set_exception(InfraError(why))

    def _read_errors(self, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(MAX_LINE_BYTES):
                self._errors.append(line.decode(errors="replace").strip()[:300])

    def _said(self) -> str:
        return f": {' | '.join(self._errors)}" if self._errors else ""


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the process has ended")
    return pipe
