"""Runs the function of a harness. This file runs in the configured interpreter, and imports nothing from agentrl.

    python function_worker.py TARGET NUM_THREADS

TARGET is `/path/to/file.py:name` or `pkg.module:name`. The first line of the output is {"ready": true}, or
{"refused": reason}. Each request {"id", "task", "endpoint"} gets an answer {"id", "returned"} or {"id", "failed"};
{"cancel": id} cancels a request. The process sends {"id", "call", "command", "timeout_s"} to run a command in the
sandbox, and {"id", "stop": call} to end the command. agentrl replies with {"id", "return": call} and the result or
an error. The process ends when its input ends.
"""

# this file must work with Python 3.9
from __future__ import annotations

import asyncio
import importlib.util
import inspect
import itertools
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO, Optional  # Any: JSON, and what the function returns

MAX_LINE_BYTES = 2**20
MAX_TEXT = 20_000
"""Number of characters that are kept from the end of a traceback."""


@dataclass(frozen=True)
class CommandResult:
    """Result of a command: see `agentrl.harness.commands`."""

    output: str
    exit_code: int
    timed_out: bool


class Endpoint:
    """Addresses of the model, and a method that runs commands in the sandbox: see `agentrl.harness.endpoint`."""

    def __init__(self, worker: Worker, number: int, values: dict[str, str]) -> None:
        self.base_url, self.root_url = values["base_url"], values["root_url"]
        self.key, self.model = values["key"], values["model"]
        self._worker, self._number = worker, number
        self._results: dict[int, asyncio.Future[CommandResult]] = {}
        self._loop, self._ended = asyncio.get_running_loop(), False

    async def run_command(self, command: str, timeout_s: Optional[float] = None) -> CommandResult:  # noqa: UP045  # 3.9
        """Run a shell command in the sandbox of the task."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("from a thread, use asyncio.run_coroutine_threadsafe(endpoint.run_command(...), loop)")
        if self._ended:
            raise RuntimeError("the rollout has ended")
        call = next(self._worker.calls)
        result: asyncio.Future[CommandResult] = self._loop.create_future()
        self._results[call] = result
        try:
            message = {"id": self._number, "call": call, "command": command, "timeout_s": timeout_s}
            self._worker.send(message)
            return await result
        except asyncio.CancelledError:
            self._worker.send({"id": self._number, "stop": call})
            raise
        finally:
            self._results.pop(call, None)

    def receive(self, message: dict[str, Any]) -> None:
        """Pass the result of a command to the call that waits for it."""
        result = self._results.get(message["return"])
        if result is None or result.done():
            return
        if "error" in message:
            result.set_exception(RuntimeError(message["error"]))
        else:
            result.set_result(CommandResult(**message["result"]))

    def end(self) -> None:
        """Refuse new commands, and raise an error in calls that wait for a result."""
        self._ended = True
        for result in self._results.values():
            if not result.done():
                result.set_exception(RuntimeError("the rollout has ended"))


class Worker:
    """Runs the function once for each request; all requests run concurrently."""

    def __init__(self, function: Callable[[Any, Endpoint], Awaitable[object]], answers: BinaryIO) -> None:
        self.calls = itertools.count()
        self._function, self._answers = function, answers
        self._running: dict[int, tuple[asyncio.Task[None], Endpoint]] = {}

    def send(self, message: dict[str, Any]) -> None:
        """Write a message as one line. Call this on the event loop only."""
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        if len(line) >= MAX_LINE_BYTES:
            raise ValueError(f"a message has {len(line)} bytes, but at most {MAX_LINE_BYTES} can be sent")
        self._answers.write(line)
        self._answers.flush()

    def receive(self, message: dict[str, Any]) -> None:
        """Start or cancel a request, or pass it the result of a command."""
        if "cancel" in message:
            if message["cancel"] in self._running:
                task, endpoint = self._running[message["cancel"]]
                endpoint.end()
                task.cancel()
        elif "return" in message:
            if message["id"] in self._running:
                self._running[message["id"]][1].receive(message)
        else:
            number = message["id"]
            endpoint = Endpoint(self, number, message["endpoint"])
            task = asyncio.ensure_future(self._run(number, SimpleNamespace(**message["task"]), endpoint))
            self._running[number] = task, endpoint
            task.add_done_callback(lambda _: self._running.pop(number))

    async def _run(self, number: int, task: SimpleNamespace, endpoint: Endpoint) -> None:
        try:
            answer = {"returned": plain(await self._function(task, endpoint))}
        except BaseException:  # user code may raise any error, or SystemExit
            answer = {"failed": traceback.format_exc()[-MAX_TEXT:]}
        endpoint.end()
        self.send({"id": number, **answer})


def plain(returned: object) -> Any:  # Any: JSON
    """Return a JSON value for a result: None, a score, or text for any other result. agentrl rejects text."""
    try:
        if returned is None or (isinstance(returned, (int, float)) and math.isfinite(returned)):
            return returned if returned is None or isinstance(returned, bool) else float(returned)
        return repr(returned)[:100]
    except Exception as error:  # a number that is too large, or a failing __repr__
        return f"{type(returned).__name__}: {type(error).__name__}"


def load(target: str) -> Callable[[Any, Endpoint], Awaitable[object]]:
    """Import the function.

    Raises:
        ValueError: there is no such function, or it is not a coroutine function.
    """
    where, _, name = target.rpartition(":")
    module = load_file(Path(where)) if where.endswith(".py") else load_module(where, Path.cwd())
    if not hasattr(module, name):
        raise ValueError(f"'{where}' has no '{name}'")
    function: Callable[[Any, Endpoint], Awaitable[object]] = getattr(module, name)
    if not inspect.iscoroutinefunction(function):
        raise ValueError(f"'{target}' must be a coroutine function, `async def {name}(task, endpoint)`")
    return function


def load_file(path: Path) -> ModuleType:
    """Import a file as a module. The module gets the name of the file if the name is valid and no library has it."""
    sys.path.append(str(path.parent))
    found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    if found is not None and found.origin == str(path):
        return importlib.import_module(path.stem)
    spec = importlib.util.spec_from_file_location(f"agentrl_function_{path.stem}", path)
    assert spec is not None  # a path that ends in .py always has a spec and a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_module(name: str, folder: Path) -> ModuleType:
    """Import a module that is installed, or that is in `folder`."""
    sys.path.append(str(folder))
    return importlib.import_module(name)


def listen(requests: BinaryIO, loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    """Read requests until the input ends. Then end the process, even if the function blocks the event loop."""
    for line in requests:
        loop.call_soon_threadsafe(worker.receive, json.loads(line))
    end()


def end() -> None:
    """End this process and all processes that it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


async def serve(worker: Worker, requests: BinaryIO, num_threads: int) -> None:
    """Answer requests until the process is ended."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(num_threads))
    worker.send({"ready": True})
    threading.Thread(target=listen, args=(requests, loop, worker), daemon=True).start()
    await asyncio.Event().wait()


def own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes of requests and answers.

    After this call, other code of the process reads empty input, and its output goes to standard error.
    """
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(answers, "wb")


def main() -> None:
    """Load the function and answer requests."""
    target, num_threads = sys.argv[1], int(sys.argv[2])
    own = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if folder != own]  # this folder's modules must not hide the user's
    requests, answers = own_pipes()
    try:
        function = load(target)
    except BaseException as error:  # importing user code may raise any error, or SystemExit
        traceback.print_exc()
        answers.write(json.dumps({"refused": f"{type(error).__name__}: {error}"[:1000]}).encode() + b"\n")
        answers.flush()
        end()
    asyncio.run(serve(Worker(function, answers), requests, num_threads))


if __name__ == "__main__":
    main()
