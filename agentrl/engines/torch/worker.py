"""Thread that runs the model: handles commands between steps and sends results to event loops."""

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
from agentrl.engines.torch.jobs import Job

T = TypeVar("T")


STALL_S = 10.0
"""Seconds that requests wait for KV memory held by idle conversations, before an idle conversation is evicted."""


class Schedule(Protocol):
    """Protocol of the scheduler that the worker runs; see `Scheduler`."""

    waiting: list[Job]

    @property
    def jobs(self) -> list[Job]: ...  # noqa: D102
    def step(self) -> bool: ...  # noqa: D102
    def abort(self, chosen: Callable[[Job], bool]) -> None: ...  # noqa: D102
    def fail_all(self, error: Exception) -> None: ...  # noqa: D102
    def break_stall(self) -> None: ...  # noqa: D102


class Worker:
    """Runs commands and scheduler steps; waits for commands if there is nothing to compute.

    All methods except `submit`, `call` and `join` run on the worker's thread, which runs from the first command until
    `stop`.
    """

    def __init__(self, scheduler: Schedule) -> None:
        self.closed = False
        self._scheduler = scheduler
        self._commands: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._paused: PauseMode | None = None
        self._held: list[Job] = []  # received while paused
        self._on_drained: list[Callable[[], object]] = []
        self._answers: dict[asyncio.AbstractEventLoop, list[Callable[[], object]]] = {}

    def submit(self, command: Callable[[], object]) -> None:
        """Queue a command for the thread; the command must not raise."""
        if self._thread is None and not self.closed:
            run = partial(self._run, torch.get_num_threads())
            self._thread = threading.Thread(target=run, name="agentrl-torch-engine", daemon=True)
            self._thread.start()
        self._commands.put(command)
        if self._thread is None:
            self._run_commands(wait=False)  # the thread has ended: run the command in the calling thread

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread and return its result or raise its error."""
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
        """Queue the result of `future`, which belongs to `loop`.

        Results of a step are sent together, because waking event loops is slow.
        """
        self._answers.setdefault(loop, []).append(partial(_settle, future, result))

    def accept(self, job: Job) -> None:
        """Accept a new request."""
        if self.closed:
            job.resolve(job.completion(FinishReason.ABORT))
        else:
            (self._held if self._paused else self._scheduler.waiting).append(job)

    def abort(self, chosen: Callable[[Job], bool]) -> None:
        """End the requests that `chosen` selects, with the tokens so far."""
        self._scheduler.abort(chosen)
        for job in [job for job in self._held if chosen(job)]:
            self._held.remove(job)
            job.resolve(job.completion(FinishReason.ABORT))

    def pause(self, mode: PauseMode, when_quiet: Callable[[], object]) -> None:
        """Make new requests wait; `when_quiet` is called once nothing is being computed."""
        # in this engine, `retract` is the same as `in_place`, because a weight update drops all KV
        self._paused = "drain" if mode == "drain" else "in_place"
        self._on_drained.append(when_quiet)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._paused = None
        self._scheduler.waiting.extend(self._held)
        self._held = []

    def stop(self) -> None:
        """End all requests, then stop the thread."""
        self.closed = True
        self.abort(lambda job: True)

    def join(self) -> None:
        """Wait until the stopped thread ends."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._run_commands(wait=False)  # commands that arrived too late for the thread

    def _run(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)  # the OpenMP thread count is per thread
        with torch.inference_mode():
            while not self.closed:
                busy = self._step()
                self._tell_quiet(busy)  # first: the caller of `pause` must not wait for the next command
                self._deliver()
                self._run_commands(wait=not busy)
        self._run_commands(wait=False)
        self._tell_quiet(busy=False)
        self._deliver()

    def _step(self) -> bool:
        """Compute one step, if there is work. An error, which is a bug, ends all requests; the thread continues."""
        if self._paused == "in_place":
            return False
        try:
            return self._scheduler.step()
        except Exception as error:
            self._scheduler.fail_all(error)
            return True

    def _run_commands(self, *, wait: bool) -> None:
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
            with suppress(RuntimeError):  # the event loop has ended: nothing waits for the result
                loop.call_soon_threadsafe(_call_all, settling)

    def _tell_quiet(self, busy: bool) -> None:
        if self._on_drained and not (busy and self._paused == "drain"):
            # `in_place` holds waiting jobs too: they may need KV memory of a session whose next request is held
            if self._paused == "drain":
                self._paused = "in_place"
            callbacks, self._on_drained = self._on_drained, []
            for callback in callbacks:
                callback()


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
