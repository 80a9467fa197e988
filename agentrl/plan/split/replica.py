"""A simulated engine: replicas that decode with continuous batching, in the time of the running event loop.

While the set of running requests is constant, all requests sample tokens at the same speed (processor sharing). A
prefill delays decoding by the duration of the prefill. Chunked prefill (Agrawal et al. 2024, Sarathi-Serve,
arXiv:2403.02310) causes the same total delay.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

_EPSILON = 1e-6
"""Tolerance in tokens, because the clock has rounding errors."""


class EngineSpeed(Protocol):
    """Speed of one replica."""

    def decode_s(self, rows: float, context: float) -> float:
        """Return the seconds of one decode step, in which `rows` requests read `context` cached tokens in total."""
        ...

    def prefill_s(self, new: float, context: float) -> float:
        """Return the seconds to compute the last `new` tokens of a context of `context` tokens."""
        ...


@dataclass(slots=True)
class Request:
    """A request in a replica.

    Attributes:
        spans: (policy version, number of tokens) of the tokens sampled so far.
        start: the replica's `_progress` when the last span began.
    """

    context: int
    new: int
    sampled: int
    priority: int
    done: asyncio.Future[list[tuple[int, int]]]
    left: float = 0.0
    start: float = 0.0
    spans: list[tuple[int, int]] = field(default_factory=list)

    def end_span(self, progress: float, version: int) -> None:
        """Add the tokens since `start` to the spans."""
        total = self.sampled - self.left + (progress - self.start)
        tokens = round(total) - sum(tokens for _, tokens in self.spans)
        if tokens > 0:
            self.spans.append((version, tokens))
        self.left -= progress - self.start
        self.start = progress


class Replica:
    """One engine replica.

    Args:
        max_running: largest number of requests computed together.
        max_kv_tokens: largest number of tokens (prompts and completions) of all running requests; other requests wait.
        slowdown: function that returns the factor by which other work on the device makes the replica slower; called in
            `update`.
        changed: function that is called when the replica becomes busy or idle.

    Attributes:
        busy_s: seconds in which the replica was `busy`.
        num_sampled: tokens sampled.
    """

    def __init__(
        self,
        speed: EngineSpeed,
        max_running: int,
        max_kv_tokens: float = math.inf,
        slowdown: Callable[[], float] = lambda: 1.0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._speed, self._max_running, self._max_kv = speed, max_running, max_kv_tokens
        self._slowdown, self._changed = slowdown, changed
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, Request]] = []
        self._running: list[tuple[float, int, Request]] = []  # heap: (`_progress` at the request's end, ...)
        self._serial = count()
        self._progress = 0.0  # tokens that a request running since the replica's start would have sampled
        self._stall_s = 0.0  # remaining seconds of prefill
        self._context = 0.0  # tokens that the running requests have now
        self._kv = 0.0  # tokens that the running requests will have when they end
        self._step_s = math.inf
        self._factor = 1.0
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self.version = 0
        self.busy_s = 0.0
        self.num_sampled = 0

    @property
    def load(self) -> int:
        """Number of requests that have not ended."""
        return len(self._running) + len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether the replica computes: a request runs, and the replica is not paused."""
        return bool(self._running) and not self._paused

    async def generate(self, context: int, new: int, sampled: int, priority: int = 0) -> list[tuple[int, int]]:
        """Sample tokens; return (policy version, tokens) spans. A cancelled request ends immediately."""
        request = Request(context, new, sampled, priority, self._loop.create_future(), float(sampled))
        heapq.heappush(self._waiting, (-priority, next(self._serial), request))
        self.update()
        try:
            return await request.done
        finally:
            if not request.done.done() or request.done.cancelled():
                self._remove(request)

    def load_weights(self, version: int, recompute: bool) -> None:
        """Sample with new weights from now on. `recompute`: running requests compute their KV cache again."""
        self._advance()
        for _, _, request in self._running:
            request.end_span(self._progress, self.version)
            if recompute:
                tokens = request.context + request.sampled - request.left
                self._stall_s += self._speed.prefill_s(tokens, tokens)
        self.version = version
        self.update()

    def pause(self, paused: bool) -> None:
        """Stop or continue computing."""
        self._advance()
        self._paused = paused
        self.update()

    def update(self) -> None:
        """Account for a change: end and start requests, and schedule the next end of a request."""
        was_busy = self.busy
        self._advance()
        self._end_finished()
        if not self._paused:
            self._admit()
        self._schedule()
        if self.busy != was_busy:
            self._changed()

    def _advance(self) -> None:
        now = self._loop.time()
        elapsed, self._last = now - self._last, now
        if not self.busy or not elapsed:
            return
        self.busy_s += elapsed
        computed = elapsed / self._factor
        prefilled = min(computed, self._stall_s)
        self._stall_s -= prefilled
        tokens = (computed - prefilled) / self._step_s
        self._progress += tokens
        self._context += tokens * len(self._running)

    def _end_finished(self) -> None:
        while self._running and self._running[0][0] <= self._progress + _EPSILON:
            _, _, request = heapq.heappop(self._running)
            request.end_span(self._progress, self.version)
            self._forget(request)
            self.num_sampled += request.sampled
            if not request.done.done():
                request.done.set_result(request.spans)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            request = self._waiting[0][2]
            if self._running and self._kv + request.context + request.sampled > self._max_kv:
                return
            heapq.heappop(self._waiting)
            request.start = self._progress
            self._stall_s += self._speed.prefill_s(request.new, request.context)
            self._context += request.context
            self._kv += request.context + request.sampled
            heapq.heappush(self._running, (self._progress + request.sampled, next(self._serial), request))

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._factor = self._slowdown()
        if self.busy:
            self._step_s = self._speed.decode_s(len(self._running), self._context)
            tokens = max(0.0, self._running[0][0] - self._progress)
            self._timer = self._loop.call_later((self._stall_s + tokens * self._step_s) * self._factor, self.update)

    def _remove(self, request: Request) -> None:
        self._advance()
        self._waiting = [each for each in self._waiting if each[2] is not request]
        heapq.heapify(self._waiting)
        if any(each[2] is request for each in self._running):
            self._running = [each for each in self._running if each[2] is not request]
            heapq.heapify(self._running)
            request.end_span(self._progress, self.version)
            self._forget(request)
            self.num_sampled += sum(tokens for _, tokens in request.spans)
        self.update()

    def _forget(self, request: Request) -> None:
        self._context -= request.context + sum(tokens for _, tokens in request.spans)
        self._kv -= request.context + request.sampled
