"""Calls the function of a harness in another interpreter."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from agentrl.errors import ConfigError, Kind
from agentrl.harness.endpoint import Endpoint, FunctionFailedError, without
from agentrl.harness.settings import KEY, Harness
from agentrl.harness.worker_process import Message, WorkerProcess, variables_of
from agentrl.types.task import Task

PROGRAM = Path(__file__).with_name("function_worker.py")
START_S = 300.0
"""Seconds in which the process must start and import the function."""


class FunctionWorker:
    """Calls the function of a harness in a separate process. A call starts the process if the process does not run.

    Raises:
        ConfigError: there is no such interpreter or file.
    """

    def __init__(self, harness: Harness) -> None:
        settings, python = harness.settings, _interpreter(harness)
        program = [str(python), str(PROGRAM), _target(harness), str(settings.max_running)]
        variables = {**variables_of(python), "PYTHONHASHSEED": "0", **settings.env}
        self._keys: set[str] = set()
        self._new = partial(
            WorkerProcess, f"the worker of harness '{harness.name}'", program, variables, START_S, self._without_keys
        )
        self._process = self._new()

    async def __call__(self, task: Task, endpoint: Endpoint) -> object:
        """Call the function and return its result: None, a number, or any other result as text.

        Raises:
            FunctionFailedError: the function raised an exception.
            InfraError: the process does not start or has ended.
            ConfigError: the process cannot import the function.
        """
        if self._process.failed:
            self._process = self._new()
        process, calls = self._process, _Calls(self._process, endpoint)
        self._keys.add(endpoint.key)
        try:
            answer = await process.ask({"task": _task(task), "endpoint": _address(endpoint)}, calls.receive)
        finally:
            await calls.close()
            self._keys.discard(endpoint.key)
        if "failed" in answer:
            raise FunctionFailedError(str(answer["failed"]))
        return answer.get("returned")

    async def close(self) -> None:
        """End the process."""
        await asyncio.to_thread(self._process.close)

    def _without_keys(self, text: str) -> str:
        for key in [*self._keys]:
            text = without(key, text)
        return text


class _Calls:
    """The commands that the function runs in one rollout."""

    def __init__(self, process: WorkerProcess, endpoint: Endpoint) -> None:
        self._process, self._endpoint = process, endpoint
        self._running: dict[JsonValue, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def receive(self, message: Message) -> None:
        """Receive a message of the process. The thread that reads the messages calls this method."""
        with suppress(RuntimeError):  # the event loop has ended, and with it the rollout
            self._loop.call_soon_threadsafe(self._receive, message)

    async def close(self) -> None:
        """End the running commands."""
        self._closed = True
        for running in self._running.values():
            running.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _receive(self, message: Message) -> None:
        if "stop" in message:
            if running := self._running.get(message["stop"]):
                running.cancel()
        elif not self._closed:
            number = message["call"]
            running = self._running[number] = asyncio.ensure_future(self._answer(message))
            running.add_done_callback(lambda _: self._running.pop(number, None))

    async def _answer(self, message: Message) -> None:
        command, seconds = cast("str", message.get("command")), cast("float | None", message.get("timeout_s"))
        found: dict[str, JsonValue]
        try:
            found = {"result": asdict(await self._endpoint.run_command(command, seconds))}
        except Exception as error:  # the function gets the error
            found = {"error": str(error)}
        self._process.send({"id": message["id"], "return": message["call"], **found})


def _interpreter(harness: Harness) -> Path:
    """Find the interpreter: a path relative to the settings' folder or to the working folder, or a program in PATH."""
    named = str(harness.settings.python)
    path = Path(named).expanduser()
    found = [harness.folder / path, Path.cwd() / path] if os.sep in named else [Path(shutil.which(named) or path)]
    for each in found:
        if each.is_file() and os.access(each, os.X_OK):
            return each
    raise _wrong(f"'python': there is no program '{named}'", Kind.NOT_FOUND)


def _target(harness: Harness) -> str:
    """Return the function as `module:name`, or `file:name` with the absolute path of a file that exists."""
    where, _, name = str(harness.settings.function).rpartition(":")
    if not where:
        raise _wrong(f"'function': expected path/to/file.py:name or pkg.module:name, not '{name}'", Kind.WRONG_VALUE)
    if not where.endswith(".py"):
        return f"{where}:{name}"
    path = Path(where).expanduser()
    for each in (harness.folder / path, Path.cwd() / path):
        if each.is_file():
            return f"{each.resolve()}:{name}"
    raise _wrong(f"'function': there is no file '{where}'", Kind.NOT_FOUND)


def _wrong(why: str, kind: Kind) -> ConfigError:
    return ConfigError.at(KEY, kind, f"`{KEY}`: {why}")


def _task(task: Task) -> dict[str, JsonValue]:
    """Return the row as JSON, without its images."""
    return {
        "messages": cast("JsonValue", [*task.messages]),
        "instruction": task.instruction,
        "ground_truth": task.ground_truth,
        "data_source": task.data_source,
        "index": task.index,
        "uid": task.uid,
        "tools_kwargs": cast("JsonValue", dict(task.tools_kwargs)),
        "extra_info": dict(task.extra_info),
    }


def _address(endpoint: Endpoint) -> dict[str, JsonValue]:
    return {name: getattr(endpoint, name) for name in ("base_url", "root_url", "key", "model")}
