"""Processes of tools and rewards on other nodes. A tool worker is a Ray actor; it starts and calls these processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup

from agentrl.cluster.actors import Actor, actor_in, result_of
from agentrl.concurrency.child import ChildProcess, EndedError
from agentrl.registry import child_path

T = TypeVar("T")
CHECK_S = 0.2
PLACE_S = 60.0
"""Seconds to wait for a tool worker if none runs."""
MAX_TRIES = 3
"""Maximum number of workers on which the start of one process is tried."""
MAX_CALLS = 1000
"""Maximum number of calls that one worker handles at a time."""


class ToolWorker:
    """Starts processes on its node; see `ChildProcess`.

    Args:
        folder: working folder of the processes.
        environment: environment variables of the processes, in addition to the node's variables.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self._folder = folder
        os.environ.update(environment)
        self._children: dict[str, ChildProcess] = {}
        self._threads = ThreadPoolExecutor(MAX_CALLS)

    async def ready(self) -> None:
        """Change to the working folder.

        Raises:
            OSError: the working folder does not exist on this node.
        """
        os.chdir(self._folder)

    async def start(self, name: str, path: str, module: str, arguments: tuple[str, ...]) -> None:
        """Start a process under the name `name`; see `ChildProcess.start`.

        Args:
            path: folders from which the process imports, as in `PYTHONPATH`.

        Raises:
            EndedError: see `ChildProcess.start`; or the working folder does not exist on this node.
        """
        try:
            await self.ready()
        except OSError as error:
            raise EndedError(f"cannot start: {error}") from None
        sys.path += [each for each in path.split(os.pathsep) if each not in sys.path]
        child = self._children[name] = ChildProcess(module, *arguments)
        await self._in_thread(child.start)

    async def ask(self, name: str, question: str) -> str:
        """Send `question` (JSON) to the process `name`; return its answer as JSON. See `ChildProcess.ask`."""
        if (child := self._children.get(name)) is None:
            raise EndedError("was closed")
        return json.dumps(await self._in_thread(partial(child.ask, json.loads(question))))

    async def ended(self, name: str) -> None:
        """Wait until the process `name` has ended."""
        while name in self._children and self._children[name].alive:  # noqa: ASYNC110  # the process has no event
            await asyncio.sleep(CHECK_S)

    async def kill(self, name: str) -> None:
        """Kill the process `name` and its children."""
        if child := self._children.get(name):
            child.kill()

    async def close(self, name: str) -> None:
        """Kill the process `name` and forget it."""
        if child := self._children.pop(name, None):
            await self._in_thread(child.close)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


class ToolWorkers:
    """The tool workers of a run, one for each bundle of `group`.

    A lost worker is restarted on a node with free resources.

    Creating an object waits until all workers run, at most `PLACE_S` seconds.

    Args:
        group: reserved resources.
        folder, environment: see `ToolWorker`.

    Raises:
        OSError: `folder` does not exist on a node.
    """

    def __init__(self, group: PlacementGroup, folder: str, environment: Mapping[str, str]) -> None:
        self._group, self._arguments = group, (folder, environment)
        self._workers: dict[int, tuple[Actor, ObjectRef[None]]] = {}
        self._turns, self._lock = count(), threading.Lock()
        for index in range(group.bundle_count):
            self._place(index)
        ready = [ready for _, ready in self._workers.values()]
        # wait for all workers: otherwise the first processes would all start on the worker that is ready first
        for done in ray.wait(ready, num_returns=len(ready), timeout=PLACE_S)[0]:
            with suppress(RayActorError):  # the worker was lost; `RemoteChild.start` restarts it
                result_of(done)

    def child(self, module: str, *arguments: str) -> RemoteChild:
        """Return a process that is not started yet; see `pool.Child`."""
        return RemoteChild(self, module, arguments)

    def next(self) -> Actor:
        """Return a worker that runs; successive calls return different workers in turn.

        Raises:
            EndedError: no worker runs within `PLACE_S` seconds, because no node has room.
        """
        give_up = time.monotonic() + PLACE_S
        while not (there := self._there()):
            if time.monotonic() > give_up:
                raise EndedError(f"cannot start: no tool worker was running for {PLACE_S:g} s")
            time.sleep(CHECK_S)
        return there[next(self._turns) % len(there)]

    def lost(self, worker: Actor) -> None:
        """Restart a lost worker in the background."""
        with self._lock:
            for index, (known, _) in self._workers.items():
                if known is worker:
                    self._place(index)
                    return

    def _place(self, index: int) -> None:
        worker = actor_in(self._group, index, ToolWorker, *self._arguments, max_concurrency=MAX_CALLS)
        self._workers[index] = worker, worker.ready.remote()

    def _there(self) -> list[Actor]:
        with self._lock:
            workers = {ready: worker for worker, ready in self._workers.values()}
        done = ray.wait([*workers], num_returns=len(workers), timeout=0)[0]
        return [workers[ready] for ready in done]


class RemoteChild:
    """A process on the node of a tool worker; see `ChildProcess`."""

    def __init__(self, workers: ToolWorkers, module: str, arguments: tuple[str, ...]) -> None:
        self._workers, self._module, self._arguments = workers, module, arguments
        self._name, self._killed = token_hex(8), False
        self._worker: Actor | None = None
        self._ended: ObjectRef[None] | None = None

    def start(self) -> None:
        """See `ChildProcess.start`. If the chosen worker is lost, the next worker is tried.

        Raises:
            EndedError: see `ChildProcess.start`; also if no node has room for a worker.
        """
        for _ in range(MAX_TRIES):
            worker = self._worker = self._workers.next()
            try:
                result_of(worker.start.remote(self._name, child_path(), self._module, self._arguments))
            except RayActorError:
                self._workers.lost(worker)
            else:
                self._ended = worker.ended.remote(self._name)
                return
        raise EndedError(f"cannot start: {MAX_TRIES} tool workers were lost")

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:  # Any: as in `ChildProcess.ask`
        """See `ChildProcess.ask`.

        Raises:
            EndedError: see `ChildProcess.ask`; also if the node was lost.
        """
        assert self._worker is not None, "it is not started"
        text = json.dumps(question)
        try:
            answer: dict[str, Any] = json.loads(result_of(self._worker.ask.remote(self._name, text)))
        except RayActorError:
            self._killed = True
            self._workers.lost(self._worker)
            raise EndedError("was on a node that was lost") from None
        return answer

    @property
    def alive(self) -> bool:
        """See `ChildProcess.alive`."""
        started = self._ended is not None and not self._killed
        return started and not ray.wait([self._ended], timeout=0)[0]

    def kill(self) -> None:
        """See `ChildProcess.kill`; does not wait."""
        self._killed = True
        if self._worker is not None:
            self._worker.kill.remote(self._name)

    def close(self) -> None:
        """See `ChildProcess.close`; does not wait."""
        self._killed = True
        if self._worker is not None:
            with suppress(RayActorError):
                self._worker.close.remote(self._name)
