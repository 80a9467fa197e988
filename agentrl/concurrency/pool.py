"""Bounded pool of child processes, which all run one module and are reused between calls."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from agentrl.concurrency.child import ChildProcess, EndedError
from agentrl.concurrency.circuit_breaker import CircuitBreaker
from agentrl.concurrency.mailbox import OverdueError, UnavailableError
from agentrl.concurrency.run import Offload

START_TIMEOUT_S = 120.0
"""Maximum seconds for a process to start and import its code; not part of the call's timeout."""
PER_CPU, _MOST = 8, 64
_DESCRIPTORS = 16
"""File descriptors reserved per child process. A child uses three of them; the rest of the program uses the others."""


def default_size() -> int:
    """Return the default number of processes per tool: 8 per CPU, at most 64, fewer if the file limit is low.

    For processes on other nodes, return the size given to `start_remotely`.
    """
    if _remote:
        return _remote[0][1]
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST if soft == resource.RLIM_INFINITY else soft // _DESCRIPTORS
    return max(1, min(_MOST, PER_CPU * (os.cpu_count() or 1), files))


class Child(Protocol):
    """A process that answers questions, here or on another node. See `ChildProcess`."""

    @property
    def alive(self) -> bool:
        """Whether the process can answer another question."""
        ...

    def start(self) -> None:
        """Wait until the process is ready for questions."""
        ...

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:  # Any: the module's JSON
        """Send a question and return the answer."""
        ...

    def kill(self) -> None:
        """Kill the process; safe from any thread."""
        ...

    def close(self) -> None:
        """Kill the process and free its resources."""
        ...


MakeChild = Callable[..., Child]
"""(module, *arguments) -> a process. The `start` method of the process waits until the process is ready."""
_remote: list[tuple[MakeChild, int]] = []  # global, because a process takes part in only one run


def start_remotely(make: MakeChild, size: int) -> None:
    """Create the processes of all later pools with `make`; `size` is the default size of such a pool."""
    _remote[:] = [(make, size)]


class ChildPool:
    """At most `size` processes, started when needed and reused; further calls wait for a free process."""

    def __init__(self, offload: Offload, breaker: CircuitBreaker, size: int, module: str, *arguments: str) -> None:
        self._offload, self._breaker, self._size = offload, breaker, size
        self._start_breaker = CircuitBreaker(f"the start of {breaker.name}")
        make: MakeChild = _remote[0][0] if _remote else ChildProcess
        self._new = partial(make, module, *arguments)
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._closed = False

    async def ask(self, question: Mapping[str, object], deadline_s: float) -> dict[str, Any]:  # Any: the module's JSON
        """Send a question to a process and return the answer.

        The timeout starts when the question is sent: waiting for a free process and starting one do not count.

        Raises:
            OverdueError: there was no answer in `deadline_s` seconds; the process was killed.
            UnavailableError: the process could not start, or ended, or the circuit breaker refuses the call.
            TypeError: the question cannot be written as JSON.
        """
        async with self._free_slot():
            child = await self._take()
            try:
                ask = partial(self._ask, child, question)
                return await self._offload.run_function(ask, deadline_s, self._breaker, stop=child.kill)
            except EndedError as error:
                raise _unavailable(error) from None
            except UnavailableError:  # the call did not start
                self._put(child)
                raise

    def close(self) -> None:
        """Kill all processes, then close each of them."""
        self._closed = True
        children = [*self._all]
        for child in children:  # kill all children before waiting for the first
            child.kill()
        for child in children:
            self._drop(child)
        self._idle.clear()

    def _free_slot(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:  # a semaphore belongs to one loop
            self._slots = loop, asyncio.Semaphore(self._size)
        return self._slots[1]

    async def _take(self) -> Child:
        while not (child := self._pop_idle()):
            try:
                new = self._new()
                self._all.add(new)
                await self._offload.run_function(partial(self._start, new), START_TIMEOUT_S, self._start_breaker)
            except EndedError as error:
                raise _unavailable(error) from None
            except OverdueError:
                new.kill()
                raise _unavailable(f"was not ready in {START_TIMEOUT_S:g} seconds") from None
        return child

    def _pop_idle(self) -> Child | None:
        while self._idle:
            if (child := self._idle.pop()).alive:
                return child
            self._drop(child)
        return None

    def _start(self, child: Child) -> None:
        """Start a child, on a worker thread. If the caller was cancelled meanwhile, the next call uses the child."""
        try:
            child.start()
        finally:
            self._put(child)

    def _ask(self, child: Child, question: Mapping[str, object]) -> dict[str, Any]:
        """Ask a child, on a worker thread."""
        try:
            return child.ask(question)
        finally:
            self._put(child)

    def _put(self, child: Child) -> None:
        if child.alive and not self._closed:
            self._idle.append(child)
        else:
            self._drop(child)

    def _drop(self, child: Child) -> None:
        self._all.discard(child)
        child.close()


def _unavailable(why: object) -> UnavailableError:
    return UnavailableError(f"its process {why}")
