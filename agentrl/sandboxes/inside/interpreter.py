"""Runs Python code in a child process, with a deadline and a limit on the output.

The interpreter of the model's code is a child process, so that it can be killed and replaced.
"""

# not pathlib and contextlib: their import would slow down each start
# ruff: noqa: PTH208, SIM105
from __future__ import annotations

import ast
import json
import linecache
import os
import select
import signal
import sys
import time
import traceback
from typing import Any  # Any: JSON of the requests

CHUNK = 2**16
INTERRUPT_S = 0.5
"""Seconds after an interrupt until the interpreter is killed."""
LOOK_S = 0.2
"""Maximum seconds between two checks of the number of files."""
MAX_FILES = 100_000
"""Maximum number of files in a writable folder. Each file uses system memory to which no other limit applies."""
WRITABLE: list[str] = []
"""Folders whose files are counted."""


class Output:
    """Output from a pipe: the first and the last bytes; the middle is dropped."""

    def __init__(self, most: int) -> None:
        self.half, self.start, self.end, self.dropped = most // 2, b"", b"", 0

    def add(self, data: bytes) -> None:
        """Add data from the pipe."""
        room = self.half - len(self.start)
        self.start += data[:room]
        self.end += data[room:] if room > 0 else data
        if len(self.end) > self.half:
            self.dropped += len(self.end) - self.half
            self.end = self.end[-self.half :]

    def text(self) -> str:
        """Return the kept text."""
        between = b"\n[%d bytes left out]\n" % self.dropped if self.dropped else b""
        return (self.start + between + self.end).decode("utf-8", "replace")


class Interpreter:
    """A child process that runs Python code and keeps its variables.

    Args:
        owns_all: what is killed when the interpreter ends. True: all processes of the sandbox; False: only the
            interpreter's process group.
    """

    def __init__(self, owns_all: bool = True) -> None:
        self.owns_all = owns_all
        own, self.requests = os.pipe()
        self.replies, answers = os.pipe()
        self.output, written = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            for descriptor in (self.requests, self.replies, self.output):
                os.close(descriptor)
            os.dup2(written, 1)
            os.dup2(written, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.setsid()
            interpret(own, answers)
        for descriptor in (own, answers, written):
            os.close(descriptor)
        os.set_blocking(self.output, False)

    def run(self, code: str, seconds: float, most: int, stop: tuple[int, ...] = ()) -> dict[str, Any]:
        """Run code; interrupt it after `seconds`, and kill the interpreter if the code does not stop.

        Args:
            stop: file descriptors; the code is interrupted as soon as one of them is readable.
        """
        number = os.urandom(8).hex()
        output, reply, state = Output(most), b"", ""
        send(self.requests, {"id": number, "code": code})
        end, interrupted = time.monotonic() + seconds, False
        while b"\n" not in reply:
            left = end - time.monotonic()
            if left <= 0:
                if interrupted:
                    state = "lost"
                    break
                os.kill(self.process, signal.SIGINT)
                interrupted, stop, end = True, (), time.monotonic() + INTERRUPT_S
                continue
            ready = wait([self.output, self.replies, *stop], left)
            if any(descriptor in ready for descriptor in stop):
                end = 0.0
            if self.output in ready and not drain(self.output, output):
                state = "lost"
                break
            if self.replies in ready:
                if not (read := os.read(self.replies, CHUNK)):
                    state = "lost"
                    break
                reply += read
        drain(self.output, output)
        found = parsed(reply, number)
        if state == "lost" or found is None:
            self.close()
            return {"output": output.text(), "error": "", "timed_out": interrupted, "state_lost": True}
        return {"output": output.text(), "error": found, "timed_out": interrupted, "state_lost": False}

    def close(self) -> None:
        """End the interpreter, and everything that it started."""
        for process in processes() if self.owns_all else [-self.process]:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        os.waitpid(self.process, 0)
        for descriptor in (self.requests, self.replies, self.output):
            os.close(descriptor)


def processes() -> list[int]:
    """Return the processes of the sandbox except this process and process 1."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]


def wait(descriptors: list[int], seconds: float) -> list[int]:
    """Wait at most `LOOK_S`; return the readable descriptors. End the sandbox if a folder has too many files."""
    for folder in WRITABLE:
        found = os.statvfs(folder)
        if found.f_files - found.f_ffree > MAX_FILES:
            os._exit(1)
    return select.select(descriptors, [], [], min(seconds, LOOK_S))[0]


def drain(descriptor: int, output: Output) -> bool:
    """Read the available data; return False at the end of the pipe."""
    for _ in range(16):  # after 16 chunks, the caller checks the deadline
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        output.add(data)
    return True


def parsed(reply: bytes, number: str) -> str | None:
    """Return the error in `reply`; None if `reply` does not answer the request with the id `number`."""
    try:
        found = json.loads(reply.partition(b"\n")[0])
        return str(found["error"])[:CHUNK] if found["id"] == number else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def send(descriptor: int, message: dict[str, Any]) -> None:
    """Write a line of JSON."""
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def interpret(requests: int, replies: int) -> None:
    """Run the code of each request. This function does not return."""
    scope: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    own, number = os.getpid(), 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            request, number = json.loads(line), number + 1
            error = ""
            try:
                run(request["code"], f"<code {number}>", scope)
            except BaseException:  # SystemExit and KeyboardInterrupt too: the interpreter continues
                error = trace()
            if os.getpid() != own:  # the code forked, and this is the child
                os._exit(0)
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            except Exception as failure:
                error = error or f"{type(failure).__name__}: {failure}"
            send(replies, {"id": request["id"], "error": error})
    os._exit(0)


def run(code: str, name: str, scope: dict[str, Any]) -> None:
    """Run statements; print the value of a last expression, as a notebook does."""
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), scope)
        return
    exec(compile(ast.Module(tree.body[:-1], []), name, "exec"), scope)
    value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
    if value is not None:
        print(repr(value))


def trace() -> str:
    """Return the traceback, starting at the model's code."""
    kind, error, frames = sys.exc_info()
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<code "):
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(kind, error, frames, limit=-20))
    except BaseException:  # an exception whose __str__ fails
        return getattr(kind, "__name__", "an exception")
