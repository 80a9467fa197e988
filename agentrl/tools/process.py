"""Plain functions in processes of their own, which can be killed where a thread cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pydantic import JsonValue

from agentrl.offload.child import ChildProcess, EndedError, import_path
from agentrl.tools.answer import Answer
from agentrl.tools.base import InfraError, ToolError


class ToolFailedError(Exception):
    """A tool failed in its process; the text names the exception it raised."""


class ProcessWorker(ChildProcess):
    """One child process that serves calls one at a time."""

    def __init__(self, target: str) -> None:
        super().__init__("agentrl.tools.process_worker", target)

    def start(self) -> None:
        """Wait until it is ready for calls.

        Raises:
            InfraError: it ended instead.
        """
        with _infra():
            super().start()

    def call(self, arguments: dict[str, JsonValue]) -> Answer:
        """Run the function once.

        Raises:
            ToolError, ToolFailedError: what the function raised.
            InfraError: the process is gone, or the function raised it.
        """
        with _infra():
            reply = self.ask(arguments)
        if "error" in reply:
            errors = {"ToolError": ToolError, "InfraError": InfraError}
            raise errors.get(reply["error"], ToolFailedError)(reply["text"])
        return Answer(reply["text"], reply["reward"], reply["metrics"])


@contextmanager
def _infra() -> Iterator[None]:
    try:
        yield
    except EndedError as error:
        raise InfraError(f"the tool's process {error}") from None


class ProcessPool:
    """The processes of one function: as many as there are calls at a time, kept for the next ones."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._target = import_path(function)
        self._idle: list[ProcessWorker] = []
        self._all: list[ProcessWorker] = []

    def take(self) -> ProcessWorker:
        """A process that is ready. Blocks while one starts.

        Raises:
            InfraError: it does not start.
        """
        while self._idle:
            if (worker := self._idle.pop()).alive:
                return worker
        worker = ProcessWorker(self._target)
        self._all.append(worker)
        worker.start()
        return worker

    def call(self, worker: ProcessWorker, arguments: dict[str, JsonValue]) -> Answer:
        """Run the function in `worker` and keep it for the next call."""
        try:
            return worker.call(arguments)
        finally:
            self.put(worker)

    def put(self, worker: ProcessWorker) -> None:
        """Keep a process for the next call, if it is alive."""
        if worker.alive:
            self._idle.append(worker)
        else:
            self._all.remove(worker)
            worker.close()

    def close(self) -> None:
        """End all of them."""
        for worker in self._all:
            worker.close()


class Taking:
    """`pool.take` for a caller who may have gone when the process is ready: then the pool has it back."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool = pool
        self._ready: list[ProcessWorker] = []
        self._given_up = False

    def __call__(self) -> ProcessWorker:
        """On a thread: a process that is ready; raises as `take`."""
        worker = self._pool.take()
        self._ready.append(worker)
        if self._given_up:
            self._put_back()
        return worker

    def give_up(self) -> None:
        """Nobody waits for it any more; from any thread."""
        self._given_up = True
        self._put_back()

    def _put_back(self) -> None:
        # both threads first say what they have done and then look at what the other did: the one that comes last,
        # or, as `pop` is atomic, one of the two, finds the process here
        with suppress(IndexError):
            self._pool.put(self._ready.pop())
