"""The one thread that computes: it does what it is told between steps, and answers event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

import torch

from agentrl.engines.base import FinishReason, PauseMode
from agentrl.engines.jobs import Job

T = TypeVar("T")


STALL_S = 10.0
"""How long requests wait for room that only idle conversations hold, before one of those is forgotten."""


class Schedule(Protocol):
    """What the worker runs; see `Scheduler`."""

    waiting: list[Job]

    @property
    def jobs(self) -> list[Job]: ...  # noqa: D102
    def step(self) -> bool: ...  # noqa: D102
    def abort(self, chosen: Callable[[Job], bool]) -> None: ...  # noqa: D102
    def fail_all(self, error: Exception) -> None: ...  # noqa: D102
    def break_stall(self) -> None: ...  # noqa: D102


class Worker:
    """Consumes commands and steps the scheduler while it is busy; waits on the command queue otherwise.

    Everything but `submit` and `call` happens on its thread, which starts with the first command and ends with `close`.
    """

    def __init__(self, scheduler: Schedule) -> None:
        self.closed = False
        self._scheduler = scheduler
        self._commands: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._paused: PauseMode | None = None
        self._held: list[Job] = []  # came while paused
        self._on_drained: list[Callable[[], object]] = []
        self._answers: dict[asyncio.AbstractEventLoop, list[Callable[[], object]]] = {}

    def submit(self, command: Callable[[], object]) -> None:
        """Have `command` done soon; it must not raise."""
        if self._thread is None and not self.closed:
            run = partial(self._run, torch.get_num_threads())
            self._thread = threading.Thread(target=run, name="agentrl-torch-engine", daemon=True)
            self._thread.start()
        self._commands.put(command)
        if self._thread is None:
            self._obey(wait=False)  # closed: nobody else is left to do it

    async def call(self, function: Callable[[], T]) -> T:
        """The result, or the error, of `function` on the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def answer() -> None:
            try:
                self.settle(loop, future, function())
            except Exception as error:
                self.settle(loop, future, error)

        self.submit(answer)
        return await future

    def settle(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], result: T | Exception) -> None:
        """Give a future of `loop` its result, soon: what a step has for a loop goes there at once, as waking it costs
        more than a token."""
        self._answers.setdefault(loop, []).append(partial(_settle, future, result))

    def accept(self, job: Job) -> None:
        """Take a new request."""
        if self.closed:
            job.resolve(job.completion(FinishReason.ABORT))
        else:
            (self._held if self._paused else self._scheduler.waiting).append(job)

    def abort(self, chosen: Callable[[Job], bool]) -> None:
        """End requests with what they have."""
        self._scheduler.abort(chosen)
        for job in [job for job in self._held if chosen(job)]:
            self._held.remove(job)
            job.resolve(job.completion(FinishReason.ABORT))

    def pause(self, mode: PauseMode, when_quiet: Callable[[], object]) -> None:
        """Hold new requests; `when_quiet` is called once nothing is being computed."""
        self._paused = "drain" if mode == "drain" else "in_place"  # the scheduler computes KV anew by itself
        self._on_drained.append(when_quiet)

    def resume(self) -> None:
        """Go on."""
        self._paused = None
        self._scheduler.waiting.extend(self._held)
        self._held = []

    def stop(self) -> None:
        """End all requests, then the thread."""
        self.closed = True
        self.abort(lambda job: True)

    def join(self) -> None:
        """Wait for the thread, once it was told to stop."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._obey(wait=False)  # what came too late for the thread

    def _run(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)  # OpenMP's count is a thread's own
        with torch.inference_mode():
            while not self.closed:
                busy = self._step()
                self._tell_quiet(busy)  # before waiting: who pauses is not to wait for a command
                self._deliver()
                self._obey(wait=not busy)
        self._obey(wait=False)
        self._tell_quiet(busy=False)
        self._deliver()

    def _step(self) -> bool:
        """One step, if there is one to do. An error is our bug: it reaches all who wait, and the thread lives."""
        if self._paused == "in_place":
            return False
        try:
            return self._scheduler.step()
        except Exception as error:
            self._scheduler.fail_all(error)
            return True

    def _obey(self, *, wait: bool) -> None:
        stuck = wait and self._paused != "in_place" and bool(self._scheduler.jobs)
        try:
            while True:
                self._commands.get(block=wait, timeout=STALL_S if stuck else None)()
                wait = stuck = False
        except Empty:
            if stuck:
                self._scheduler.break_stall()
        self._deliver()

    def _deliver(self) -> None:
        answers, self._answers = self._answers, {}
        for loop, settling in answers.items():
            with suppress(RuntimeError):  # the loop has ended: nobody is left to tell
                loop.call_soon_threadsafe(_call_all, settling)

    def _tell_quiet(self, busy: bool) -> None:
        if self._on_drained and not (busy and self._paused == "drain"):
            if self._paused == "drain":  # what found no room may wait for sessions that are held: it waits with them
                self._paused = "in_place"
            callbacks, self._on_drained = self._on_drained, []
            for tell in callbacks:
                tell()


def _call_all(functions: Iterable[Callable[[], object]]) -> None:
    for function in functions:
        function()


def _settle(future: asyncio.Future[T], result: T | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
